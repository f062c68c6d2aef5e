"""What the charts' values.yaml and the documents say of values: all of them do something, and there are no others."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

helm = pytest.importorskip("helm_python", reason="`make chart-test` installs Helm")
yaml = pytest.importorskip("yaml", reason="`make chart-test` installs PyYAML")

from tests.chart.rendering import render  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CHARTS = {path.parent.name: path.parent for path in ROOT.glob("packaging/*/Chart.yaml")}
DOCUMENTS = {"chart": "docs/kubernetes.md", "serve-chart": "docs/serving/deploy.md"}
COMMAND = re.compile(r"^ {4}(helm (?:install|upgrade) (?:[^\n\\]|\\\n)*)", re.MULTILINE)


def paths(values, before=()):
    """Each value's keys from the outermost on; a map that is empty by default is one value."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from paths(value, (*before, key))
        else:
            yield (*before, key)


def defaults(name):
    return yaml.safe_load((CHARTS[name] / "values.yaml").read_text())


def named_in_templates(name):
    text = "".join(path.read_text() for path in (CHARTS[name] / "templates").iterdir())
    return {tuple(found.split(".")) for found in re.findall(r"\.Values\.([\w.]+)", text)}


def shown(name):
    """The commands of Helm in the chart's document."""
    for command in COMMAND.findall((ROOT / DOCUMENTS[name]).read_text()):
        yield shlex.split(command.partition("#")[0].replace("\\\n", " "))


@pytest.mark.parametrize("name", CHARTS)
def test_every_value_is_used(name):
    named = named_in_templates(name)
    unused = [path for path in paths(defaults(name)) if not any(path[: len(each)] == each for each in named)]
    assert not unused


@pytest.mark.parametrize("name", CHARTS)
def test_what_templates_use_has_a_default_and_a_schema(name):
    values = defaults(name)
    for path in named_in_templates(name):
        place = values
        for key in path:
            assert key in place, ".".join(path)
            place = place[key]
    schema = json.loads((CHARTS[name] / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()


@pytest.mark.parametrize("name", CHARTS)
def test_commands_of_the_document_are_of_values_that_there_are(name):
    commands = list(shown(name))
    assert len(commands) >= 2
    for command in commands:
        folders = [word for word in command if (ROOT / word / "Chart.yaml").is_file()]
        assert len(folders) == 1, command
        given = [word for option, word in itertools.pairwise(command) if option == "--set"]
        values = helm.parse_set_string(",".join(given)) if given else {}
        with helm.Chart.load(ROOT / folders[0]) as chart:
            chart.validate_schema(chart.merge_values(values))
            assert render(chart, values)


@pytest.mark.parametrize("name", CHARTS)
def test_values_that_the_document_names_are_there(name):
    values = defaults(name)
    found = set()
    for word in re.findall(r"`([a-z]\w*(?:\.\w+)*)(?:: [^`]*)?`", (ROOT / DOCUMENTS[name]).read_text()):
        keys = word.split(".")
        if keys[0] not in values or word in ("daemon", "agent"):
            continue
        place = values
        for key in keys:
            assert isinstance(place, dict), word
            assert not place or key in place, word
            place = place.get(key)
        found.add(word)
    assert len(found) >= 3, found


@pytest.mark.parametrize("name", CHARTS)
def test_a_schema_says_of_every_list_and_map_what_is_in_it(name):
    """Else a wrong value is found by the apiserver, in the middle of an upgrade."""
    free = {"global", "nodeAffinity", "podAffinity", "podAntiAffinity", "valueFrom"}  # Kubernetes' own, and Helm's

    def incomplete(schema, place):
        if schema.get("type") == "array" and "items" not in schema:
            yield place
        if schema.get("type") == "object" and "additionalProperties" not in schema and place[-1] not in free:
            yield place
        if isinstance(schema.get("additionalProperties"), dict):
            yield from incomplete(schema["additionalProperties"], (*place, "*"))
        if "items" in schema:
            yield from incomplete(schema["items"], (*place, "[]"))
        for kind in ("properties", "definitions"):
            for key, value in schema.get(kind, {}).items():
                yield from incomplete(value, (*place, key))

    schema = json.loads((CHARTS[name] / "values.schema.json").read_text())
    found = [place for place in incomplete(schema, (name,)) if place[-2:] != ("volume", "*")]
    assert not found


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("word", ["123", "on", "null", "0x10"])
def test_a_name_that_yaml_would_read_as_something_else_stays_text(name, word):
    """The apiserver refuses a number where a text belongs, and a null is no namespace at all."""
    classes = ["agent.priorityClassName", "agent.runtimeClassName", "admission.priorityClassName"]
    keys = classes if name == "chart" else ["runtimeClassName"]
    values = helm.parse_set_string_values(",".join(f"{key}={word}" for key in keys))
    with helm.Chart.load(CHARTS[name]) as chart:
        objects = render(chart, values, name=word, namespace=word)
    assert len(objects) > 3
    for entry in objects:
        meta = entry["metadata"]
        assert meta.get("namespace", word) == word, meta
        assert isinstance(meta["name"], str), meta
        assert meta["labels"]["app.kubernetes.io/instance"] == word, meta
    specs = [entry["spec"]["template"]["spec"] for entry in objects if entry["kind"] in ("DaemonSet", "Deployment")]
    found = [spec[kind] for spec in specs for kind in ("priorityClassName", "runtimeClassName") if kind in spec]
    assert found == [word] * len(keys)


@pytest.mark.parametrize("text", ["  [daemon]\nhost_memory = '1GiB'\n", "# a: b\n\t[daemon]\n", ""])
def test_the_daemons_configuration_comes_as_it_was_written(text):
    with helm.Chart.load(CHARTS["chart"]) as chart:
        objects = render(chart, {"daemon": {"configuration": text}})
    assert [entry["data"]["gemlet.toml"] for entry in objects if entry["kind"] == "ConfigMap"] == [text]


@pytest.mark.parametrize("key", ["directory", "kubeletDirectory", "runtimeDirectory"])
def test_a_directory_that_cannot_stand_in_the_templates_is_refused_by_name(key):
    with helm.Chart.load(CHARTS["chart"]) as chart, pytest.raises(helm.HelmError, match=key):
        render(chart, {key: "/data,gemlet"})
