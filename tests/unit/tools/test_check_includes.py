"""Which room of native/ may include which: what the check refuses, and that the tree holds it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools/check_includes.py"
_spec = importlib.util.spec_from_file_location("check_includes", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)


@pytest.fixture
def native(tmp_path: Path) -> Path:
    for path in (
        "wire.h",
        "hook/link/say.h",
        "hook/submit/gate.h",
        "arbiter/arbiter.hpp",
        "server/server.hpp",
        "sim/work.hpp",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#pragma once\n")
    return tmp_path


def write(native: Path, path: str, *includes: str) -> list[str]:
    file = native / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("// A comment.\n" + "".join(f"#include {name}\n" for name in includes))
    return check.errors(native)


def test_the_tree_holds_it() -> None:
    assert check.errors() == []


def test_the_table_has_no_circle() -> None:
    assert check.circles() == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("hook/submit/launch.cpp", '"hook/link/say.h"'),
        ("hook/submit/launch.cpp", '"hook/submit/gate.h"'),
        ("hook/submit/launch.cpp", '"wire.h"'),
        ("hook/submit/launch.cpp", "<pthread.h>"),
        ("arbiter/policies/fair.cpp", '"arbiter/arbiter.hpp"'),
        ("arbiter/policies/fair.cpp", "<vector>"),
        ("server/server.cpp", '"arbiter/arbiter.hpp"'),
        ("sim/step.cpp", '"work.hpp"'),
    ],
)
def test_downwards_and_within_a_room(native: Path, path: str, include: str) -> None:
    assert write(native, path, include) == []


@pytest.mark.parametrize(
    ("path", "include", "says"),
    [
        ("hook/link/connection.cpp", '"hook/submit/gate.h"', "hook/link may include only native, machine, hook/link"),
        ("hook/submit/launch.cpp", '"server/server.hpp"', "is in server, but hook/submit may include only"),
        ("arbiter/arbiter.cpp", '"server/server.hpp"', "is in server, but arbiter may include only"),
        ("arbiter/arbiter.cpp", "<chrono>", "knows no clock, thread, socket or file"),
        ("arbiter/arbiter.cpp", "<time.h>", "knows no clock, thread, socket or file"),
        ("wire.h", '"hook/link/say.h"', "native may include only native"),
        ("hook/submit/launch.cpp", '"gate.h"', "expected a path relative to native/"),
        ("batch/batch.cpp", '"wire.h"', "is in native, but batch may include only batch"),
    ],
)
def test_upwards(native: Path, path: str, include: str, says: str) -> None:
    (error,) = write(native, path, include)
    assert error.startswith(f"native/{path}:2: ")
    assert says in error


def test_a_folder_that_is_not_a_room(native: Path) -> None:
    (error,) = write(native, "hook/misc/parts.h")
    assert "native/hook/misc/parts.h: its folder is not a room" in error
