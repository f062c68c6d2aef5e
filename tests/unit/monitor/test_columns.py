"""Each column has one meaning: one list for status, top, audit, the document and docs/commands.md."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gemlet.daemon.audit import Outsider
from gemlet.daemon.status import Status, UnmanagedStatus
from gemlet.model import GROUP_FIELDS
from gemlet.monitor import tables, top, tree
from gemlet.monitor.columns import COLUMNS
from tests.unit.monitor.status_example import example
from tests.unit.monitor.test_top import swapping

COMMANDS = Path(__file__).resolve().parents[3] / "docs/commands.md"
FIELDS_OF_GROUPS = {name.upper() for name in GROUP_FIELDS}  # a group's own keys are columns by their names


def documented() -> dict[str, str]:
    text = COMMANDS.read_text().split("| column | meaning |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z][A-Z0-9, -]+) \| (.*) \|$", text, re.MULTILINE)
    return {name.strip(): meaning for names, meaning in rows for name in names.split(",")}


def test_the_documents_list_is_the_same():
    assert sorted(documented()) == sorted(COLUMNS)


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_the_fields_behind_a_column_are_named_and_exist(name):
    schema = msgspec.json.schema(Status)
    for path in COLUMNS[name].fields:
        where = schema["$defs"]["Status"]
        for step in path.split("."):
            where = properties(where, schema)[step]
        assert f"`{path.rpartition('.')[2]}`" in documented()[name]


def properties(kind: dict, schema: dict) -> dict:
    """Those of an object, of a list's elements, or of what may be null."""
    kind = kind.get("items", kind)
    kind = next((other for other in kind.get("anyOf", ()) if "$ref" in other), kind)
    return schema["$defs"][kind["$ref"].rpartition("/")[2]]["properties"] if "$ref" in kind else kind["properties"]


def everything() -> Status:
    who = Outsider(pid=77, uid=0, command="x", device=0, memory=None, graphics=False, seconds=1.0, user="bo")
    loose = UnmanagedStatus(
        pid=78, uid=0, command="y", group="team", strict=None, state="joined", seconds=1.0, why="no device so far"
    )
    return replace(swapping(), outside=(who,), unmanaged=(loose,))


def test_every_column_of_the_text_is_in_the_list():
    headers = [
        line for line in tables.text(everything()).splitlines() if re.match(r" *(DEVICE|GROUP|PID|UNMANAGED) ", line)
    ]
    assert len(headers) == 4
    shown = {name for line in headers for name in re.split(r"  +", line.strip())}
    assert shown <= COLUMNS.keys() | FIELDS_OF_GROUPS
    assert {"SHARE", "BUSY", "RESIDENT", "UNMANAGED"} <= shown


def test_every_column_of_top_is_in_the_list():
    assert {*top.GROUP_COLUMNS, *tree.columns(everything())} <= COLUMNS.keys()


def test_top_and_status_show_the_same_cells():
    text = tables.text(example())
    rows = [row.cells for row in tree.rows(example())]
    assert len(rows) == 2
    for cell in (cell for row in rows[1:] for cell in row.values()):
        assert cell.strip() in text
