"""Memory beyond the device, from the command line and the configuration."""

from __future__ import annotations

import json
import sys

import pytest

from tests.e2e.programs import SWAP, SWAP_MAPPED
from tests.waiting import eventually

MIB = 1 << 20
CONTEXT = 500


def clients(gemlet):
    document = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)
    return [c for device in document["devices"] for group in device["groups"] for c in group["clients"]]


def start(gemlet, *options, code=SWAP):
    files = (str(gemlet.directory / "check"), str(gemlet.directory / "end"))
    program = gemlet.start("run", "-q", "--simulate", *options, "--", sys.executable, "-c", code, *files)
    return program, program.stdout.readline().strip()


@pytest.mark.parametrize("code", [SWAP, SWAP_MAPPED], ids=["allocated", "mapped"])
def test_two_programs_of_a_group_take_turns(gemlet, code):
    limits = ("--group", "g", "--memory", f"{400 + 2 * CONTEXT}MiB", "--resident", f"{220 + 2 * CONTEXT}MiB")
    first, line = start(gemlet, *limits, code=code)
    assert line == "filled"
    second, line = start(gemlet, "--group", "g", code=code)
    assert line == "filled"
    eventually(lambda: any(c["swap"]["swapped"] > 0 for c in clients(gemlet)))
    (gemlet.directory / "check").touch()
    for program in (first, second):
        assert program.stdout.readline().strip() == "right"
    table = gemlet("status", "--simulate").stdout
    assert "SWAPPED" in table
    explained = gemlet("explain", "--simulate", "g").stdout
    assert "went to the host so far" in explained
    assert "of it on the device at a time" in explained
    assert sum(c["swap"]["resident"] + c["swap"]["swapped"] for c in clients(gemlet)) == 300 * MIB
    # A context is measured while nothing moves, and only then.
    (limit,) = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)["groups"]
    assert limit["resident"] == (220 + 2 * CONTEXT) * MIB
    (gemlet.directory / "end").touch()
    for program in (first, second):
        assert program.wait(timeout=20) == 0


def test_a_program_that_never_fits_is_told_so(gemlet):
    program = gemlet.start(
        "run", "-q", "--simulate", "--group", "a b", "--memory", "2GiB", "--resident", "600MiB",
        "--", sys.executable, "-c", SWAP, "check", "end",
    )  # fmt: skip
    out, err = program.communicate(timeout=30)
    assert out == ""
    assert "not counting contexts, and this process alone wants 0.15 GiB" in err
    assert "gemlet set --resident 2GiB --simulate 'a b'" in err
    assert "cuMemAlloc_v2: 2" in err


def test_a_device_with_a_capacity(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text(f'[daemon]\nhost_memory = "1GiB"\n[[devices]]\nindex = 0\ncapacity = "{220 + 2 * CONTEXT}MiB"\n')
    daemon = gemlet.start("daemon", "--simulate", "--config", str(config))
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    programs = [start(gemlet) for _ in range(2)]
    assert [line for _, line in programs] == ["filled", "filled"]
    eventually(lambda: any(c["swap"]["swapped"] > 0 for c in clients(gemlet)))
    assert "CAPACITY" in gemlet("status", "--simulate").stdout
    (gemlet.directory / "check").touch()
    for program, _ in programs:
        assert program.stdout.readline().strip() == "right"
    (gemlet.directory / "end").touch()
    for program, _ in programs:
        assert program.wait(timeout=20) == 0
    daemon.terminate()
    assert daemon.wait(timeout=20) == 0


def test_without_a_limit_nothing_can_move(gemlet):
    program, line = start(gemlet, "--memory", "2GiB")
    assert line == "filled"
    assert [c["swap"] for c in clients(gemlet)] == [None]
    assert "SWAPPED" not in gemlet("status", "--simulate").stdout
    (gemlet.directory / "check").touch()
    (gemlet.directory / "end").touch()
    assert program.wait(timeout=20) == 0
