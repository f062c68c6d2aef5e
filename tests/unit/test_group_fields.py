"""A group's fields stand in one table, in model.py: whatever else knows of them is made from it."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from gemlet import _native
from gemlet.cli.run import command as run
from gemlet.cli.set import command as set_
from gemlet.cli.status import rows
from gemlet.config import group_fields
from gemlet.config.render import render
from gemlet.daemon.native import GroupUsage
from gemlet.daemon.requests import Limits
from gemlet.daemon.status import GroupLimits, GroupStatus, Status
from gemlet.errors import InvalidValue
from gemlet.model import GROUP_FIELDS, Configuration, GroupField, GroupSpec, Kind, Priority, TimeTerms, Workload

ROOT = Path(__file__).resolve().parents[2]
TIME_FIELDS = [name for name, field in GROUP_FIELDS.items() if field.time]
# A value of each kind that is not a default: as Python's type, and as on a command line.
OTHER: dict[Kind, tuple[Any, str]] = {
    Kind.SHARE: (0.25, "25%"),
    Kind.FRACTION: (0.25, "25%"),
    Kind.NUMBER: (2.0, "2"),
    Kind.SLOWDOWN: (1.5, "1.5"),
    Kind.SIZE: (1536 << 20, "1.5GiB"),
    Kind.NAMES: (("ana", "ben"), "ana, ben"),
}

each_field = pytest.mark.parametrize("field", GROUP_FIELDS.values(), ids=list(GROUP_FIELDS))


def other(field: GroupField) -> tuple[Any, str]:
    if field.choices is None:
        return OTHER[field.kind]
    value = next(choice for choice in field.choices if choice != field.default)
    return value, str(value)


def test_the_table_is_the_struct() -> None:
    assert [row.name for row in dataclasses.fields(GroupSpec)] == ["name", *GROUP_FIELDS]


def test_the_generated_header_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_group_fields.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@each_field
def test_a_field_is_read_from_a_command_line_and_written_to_a_file(field: GroupField) -> None:
    value, text = other(field)
    assert group_fields.parse(field, text) == value
    written = render(Configuration(groups=(GroupSpec(name="a", **{field.name: value}),)))
    assert group_fields.read(field, tomllib.loads(written)["groups"]["a"][field.name]) == value


@each_field
def test_a_field_has_an_option_where_it_may_be_changed(field: GroupField) -> None:
    for verb, command in (("run", run), ("set", set_)):
        options = {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}
        assert (field.name in options) == (verb in field.column.verbs)
        if field.name in options:
            assert (options[field.name].help or "").startswith(field.column.help)


@each_field
def test_a_request_may_change_a_field(field: GroupField) -> None:
    value, _ = other(field)
    line = msgspec.json.encode({field.name: value})
    assert msgspec.json.decode(line, type=Limits).given() == {field.name: value}


def test_a_request_says_what_is_wrong_with_a_field() -> None:
    for line in (b'{"min": 2}', b'{"weight": 0}', b'{"memory": "8GiB"}', b'{"priority": "urgent"}', b'{"mni": 0.1}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(line, type=Limits)


@each_field
def test_a_field_is_in_the_status_document(field: GroupField) -> None:
    assert field.name in {row.name for row in dataclasses.fields(GroupLimits)}
    assert (field.name in {row.name for row in dataclasses.fields(GroupStatus)}) == field.time


def test_the_columns_of_the_status_have_every_time_term() -> None:
    empty = msgspec.convert(
        {
            "simulated": True,
            "daemon": {
                "pid": 1, "version": "", "kind": "", "directory": "", "config": None, "policy": "", "uptime_s": 0.0,
                "denied": 0, "ignored": 0,
            },
            "devices": [], "groups": [], "events": [],
        },
        Status,
    )  # fmt: skip
    assert set(TIME_FIELDS) <= set(rows(empty).strip().split(","))


@each_field
def test_the_native_server_takes_a_field_and_tells_it(field: GroupField) -> None:
    value, _ = other(field)
    if field.kind is Kind.NAMES:
        value = [1000, 1001]
    server = _native.Server()
    server.set_group("a", **{field.name: value})
    with pytest.raises(ValueError, match="no field 'mni'"):
        server.set_group("a", mni=0.1)
    with pytest.raises((TypeError, ValueError), match=field.name):
        server.set_group("a", **{field.name: "?"})


@pytest.mark.parametrize("name", TIME_FIELDS)
def test_the_native_arbiter_takes_a_time_term_and_tells_it(name: str) -> None:
    value, _ = other(GROUP_FIELDS[name])
    arbiter = _native.Arbiter("fair")
    arbiter.set_group("a", 0)
    assert arbiter.usage(0)[0][name] == GROUP_FIELDS[name].default
    arbiter.set_group("a", 0, **{name: value})
    assert arbiter.usage(0)[0][name] == value


@pytest.mark.parametrize("choices", [Priority, Workload])
def test_enumerations_have_the_same_values_on_both_sides(choices: type[Priority] | type[Workload]) -> None:
    name = choices.__name__.lower()
    arbiter = _native.Arbiter("fair")
    for value in choices:
        arbiter.set_group("a", 0, **{name: value})
        assert arbiter.usage(0)[0][name] == value
    with pytest.raises(ValueError, match=f"{name} 'urgent' is unknown"):
        arbiter.set_group("a", 0, **{name: "urgent"})


@each_field
def test_a_field_is_documented(field: GroupField) -> None:
    table = (ROOT / "docs/configuration.md").read_text().split("### Groups")[1].split("### Devices")[0]
    assert f"| `{field.name}` |" in table


def test_a_value_out_of_range_says_which_field_it_is() -> None:
    (violation,) = group_fields_violations(GroupSpec(name="a", weight=-1.0))
    assert violation == "weight: -1 is out of range: expected a positive number up to 1000000, such as 2"


def group_fields_violations(spec: GroupSpec) -> list[str]:
    from gemlet.config.rules import violations

    return [violation.message for violation in violations(spec)]


def test_no_other_module_lists_the_fields() -> None:
    """Three of a group's rarer keys together in one function or class would be a list of its own."""
    rare = {"weight", "workload", "resident"}
    guilty = []
    for path in sorted((ROOT / "src/gemlet").rglob("*.py")):
        if path.name == "model.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                words = set(re.findall(r"\w+", ast.unparse(node)))
                if rare <= words:
                    guilty.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert guilty == []


def test_a_maximum_of_0_says_what_it_does():
    """In whatever a person is told: by run, set and explain."""
    (_, said) = (text for _, text in group_fields.phrases({"min": 0.0, "max": 0.0}))
    assert said == "up to 0% (its work waits until `gemlet set` raises it)"


def test_sentences_leave_out_what_is_at_its_default() -> None:
    said = [text for _, text in group_fields.phrases({"min": 0.3, "max": 1.0, "weight": 2.0, "users": []})]
    assert said == ["30% guaranteed", "up to 100%", "weight 2"]
    assert "any amount of memory" in [text for _, text in group_fields.phrases({}, also={"memory"})]


def test_an_unknown_choice_names_the_choices() -> None:
    with pytest.raises(InvalidValue, match="expected one of best-effort, normal, latency"):
        group_fields.parse(GROUP_FIELDS["priority"], "urgent")


def test_usage_of_a_group_has_the_terms_the_server_enforces() -> None:
    assert {row.name for row in dataclasses.fields(TimeTerms)} < {row.name for row in dataclasses.fields(GroupUsage)}
