"""Workload files and `gemlet simulate`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemlet.simulate
from gemlet.cli.simulate import command
from gemlet.config.quantities import MILLISECOND
from gemlet.errors import ConfigError, UsageError
from gemlet.model import Workload
from gemlet.simulate.counters import Bins
from gemlet.simulate.report import percentile, shortfall
from gemlet.simulate.workload import load

EXAMPLES = sorted((Path(gemlet.simulate.__file__).parent / "examples").glob("*.toml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
@pytest.mark.parametrize("policy", ["fair", "gemini", "fifo"])
def test_the_examples_run(file, policy):
    result = CliRunner().invoke(command, [str(file), "--policy", policy, "--duration", "3s"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "simulated, virtual time" in result.output
    result = CliRunner().invoke(command, [str(file), "--policy", policy, "--duration", "3s", "-o", "json"])
    report = json.loads(result.output)
    assert report["schema"] == 1
    assert report["simulated"] is True
    assert report["policy"] == policy
    assert 0.5 < report["busy"] < 1.001


def test_a_service_beside_trainings():
    """The example of README: nothing idles, the minima hold, and a request of 5 ms takes little more."""
    result = CliRunner().invoke(command, [str(EXAMPLES[1]), "-o", "json"], catch_exceptions=False)
    report = json.loads(result.output)
    groups = {group["name"]: group for group in report["groups"]}
    assert report["busy"] > 0.98
    assert groups["train-a"]["used"] > 0.5
    assert groups["train-b"]["used"] > 0.3
    assert groups["service"]["latency_p50"] < 6  # ms


PAUSES = """
duration = "8s"
[[group]]
name = "pauses"
min = "80%"
[[group.program]]
kind = "bursty"
work = "{work}"
think = "2ms"
[[group]]
name = "hurries"
priority = "latency"
[[group.program]]
kind = "saturating"
"""


@pytest.mark.parametrize(("work", "least"), [("10ms", 0.65), ("100ms", 0.75)])
def test_one_that_pauses_keeps_its_minimum_beside_one_in_a_hurry(tmp_path, work, least):
    """A program in a hurry goes first, but not out of others' minima: it left 0.29 and 0.69. One of the class normal
    leaves 0.64 and 0.79."""
    file = tmp_path / "workload.toml"
    file.write_text(PAUSES.format(work=work))
    result = CliRunner().invoke(command, [str(file), "-o", "json"], catch_exceptions=False)
    used = {group["name"]: group["used"] for group in json.loads(result.output)["groups"]}
    assert used["pauses"] > least


def test_there_are_examples():
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no [[group]]"),
        ("[[group]]\nname='a'", "no [[group]] with"),
        ("[[group]]\nname='a'\nmaxx=1\n[[group.program]]", "'maxx' is unknown"),
        ("[[group]]\nname='a'\n[[group.program]]\nkind='lazy'", "unknown value 'lazy': expected one of saturating"),
        ("[[group]]\nname='a'\n[[group.program]]\nwork=5", "work: expected a duration with a unit, found 5"),
        ("[[group]]\nname='a'\n[[group.program]]\nrate='50%'", "rate: expected a positive number, found a text"),
        ("[[group]]\nname='a'\n[[group.program]]\nwork='5 parsecs'", "not a duration"),
        ("[[group]]\nname='a'\n[[group.program]]\narrive='2s'\nleave='2s'", "leaves before it has come"),
        ("[[group]]\nname='a'\n[[group.program]]\nleave='0s'", "leaves before it has come"),
        ("[[group]]\nname='a'\nmin='lots'\n[[group.program]]", "not a share"),
        ("[[group]]\nname='a'\nmax='150%'\n[[group.program]]", "'150%' is more than the whole device"),
        ("[[group]]\nname='a'\nmin=0.5\nmax=0.4\n[[group.program]]", "group 'a': min 50% is more than max 40%"),
        ("[[group]]\nname='a'\npriority='urgent'\n[[group.program]]", "urgent"),
        ("[[group]]\nname=''\n[[group.program]]", "the name is empty"),
        ("[group]\nname='a'", "is written [[group]]"),
        ("group = [", "Invalid"),
    ],
)
def test_a_wrong_workload_says_what_is_wrong(tmp_path, text, complaint):
    file = tmp_path / "w.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert complaint in error.value.message
    assert str(file) in str(error.value)


def test_a_workload_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="larger than"):
        load(Path("/dev/zero"))


def test_a_group_says_what_it_says_in_a_configuration(tmp_path):
    file = tmp_path / "w.toml"
    file.write_text(
        "[[group]]\nname='a'\nmin='30%'\nmemory='8GiB'\nworkload='memory'\nusers=['ana']\n[[group.program]]"
    )
    ((group, _),) = load(file).groups
    assert (group.min, group.memory, group.workload, group.users) == (0.3, 8 * 2**30, Workload.MEMORY, ("ana",))


def test_a_duration_that_is_not_valid_is_a_usage_error():
    for duration in ("soon", "0s", "20"):
        result = CliRunner().invoke(command, [str(EXAMPLES[0]), "--duration", duration])
        assert isinstance(result.exception, UsageError)
        assert "expected" in result.exception.message


def test_a_demand_file_is_told_from_a_workload(tmp_path):
    file = tmp_path / "demands.toml"
    file.write_text("[[model]]\nname = 'resnet50'\n")
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert refusal.value.hint == "add --serve, if this is a demand file"
    file.write_text("")
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert refusal.value.hint == "see an example: gemlet simulate --example FILE"


def test_a_policy_that_is_not_known_is_refused_with_those_that_are():
    result = CliRunner().invoke(command, [str(EXAMPLES[0]), "--policy", "fare"])
    assert result.exception.hint == "choose one of fair, gemini, fifo, none"


def test_statistics():
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    covered = Bins(29 * MILLISECOND)
    covered.add(5 * MILLISECOND, 25 * MILLISECOND, 20 * MILLISECOND)
    assert covered.values == [5 * MILLISECOND, 10 * MILLISECOND, 5 * MILLISECOND]
    bins = 100
    half = shortfall([4 * MILLISECOND] * bins, [10 * MILLISECOND] * bins, [0.5] * bins)
    assert half == pytest.approx(0.1)
    assert shortfall([0] * bins, [0] * bins, [0.5] * bins) is None
