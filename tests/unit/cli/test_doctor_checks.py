"""What doctor says of MPS, for each state of it."""

from __future__ import annotations

import os

import pytest

from gemlet.cli import doctor_checks
from gemlet.devices import mps


def status(**changes):
    known = {"state": "on", "pid": 7, "problem": None, "servers": [], "log_directory": "/run/x/mps/log"} | changes
    return {"daemon": {"kind": "user"}, "simulated": False, "mps": known}


SERVER = {"pid": 9, "status": "ACTIVE", "clients": [{}, {}]}


@pytest.mark.parametrize(
    ("changes", "verdict", "words", "hint"),
    [
        ({"servers": [SERVER]}, "ok", "control daemon 7, 2 programs side by side", None),
        ({"state": "failed", "pid": None}, "fail", "ended unexpectedly", "gemlet mps start; its log is in /run/x"),
        ({"state": "stopping"}, "warn", "control daemon 7 is being stopped", "gemlet mps stop --force"),
        ({"problem": "it does not answer"}, "warn", "it does not answer", "gemlet mps stop --force"),
        ({"servers": [SERVER | {"status": "FAULT"}]}, "warn", "server 9 has a fault", "a fault of one ends them all"),
    ],
)
def test_mps_of_a_daemon(changes, verdict, words, hint):
    check = doctor_checks._mps_of(status(**changes))
    assert check is not None
    assert (check.name, check.verdict) == ("MPS (user)", verdict)
    assert words in check.text
    assert check.hint is hint is None or hint in check.hint


@pytest.mark.parametrize("known", [{"state": "off"}, None])
def test_nothing_where_nothing_is(known):
    assert doctor_checks._mps_of({"daemon": {"kind": "user"}, "simulated": False, "mps": known}) is None


def test_control_daemons_of_others_and_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "DEFAULT_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("GEMLET_MPS_CONTROL", "/nonexistent/control")
    (missing,) = doctor_checks.mps()
    assert (missing.verdict, "not a program: --sm needs it" in missing.text) == ("warn", True)
    monkeypatch.setenv("GEMLET_MPS_CONTROL", "/bin/sh")
    (tmp_path / mps.PID_FILE).write_text(f"{os.getpid()}\n")
    other, program = doctor_checks.mps()
    assert f"pid {os.getpid()} of uid {os.geteuid()} in {tmp_path}" in other.text
    assert program.verdict == "ok"


def test_a_directory_that_cannot_be_used_is_one_failure(tmp_path, monkeypatch):
    """The daemons are looked at all the same: the system's needs no directory of the user's."""
    taken = tmp_path / "taken"
    taken.touch()
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(taken))
    found = {check.name: check for check in doctor_checks.run_checks(None)}
    assert found["runtime directory"].verdict == "fail"
    assert [name for name, check in found.items() if str(taken) in check.text] == ["runtime directory"]
