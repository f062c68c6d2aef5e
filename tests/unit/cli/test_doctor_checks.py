"""What doctor says of MPS, of the configuration and of daemons, for each state of them."""

from __future__ import annotations

import os

import pytest

from gemlet import paths
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


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The user's configuration; it is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setattr(paths, "SYSTEM_RUNTIME_DIR", str(tmp_path / "system"))
    monkeypatch.delenv("GEMLET_CONFIG", raising=False)
    (tmp_path / "gemlet").mkdir()
    return tmp_path / "gemlet" / "gemlet.toml"


def checked(socket=None):
    return [(each.name, each.verdict, each.text) for each in doctor_checks.configuration(socket)]


def test_a_configuration_that_no_daemon_would_start_with(file):
    assert checked() == [("configuration", "ok", "none: groups are made by `gemlet run`")]
    file.write_text("[groups.a]\nmin = 0.5\n")
    assert checked() == [("configuration", "ok", str(file))]
    file.write_text("[groups.a]\nmemroy = 1\nmax = 30\n")
    first, second = doctor_checks.configuration(None)
    assert (first.verdict, first.hint) == ("fail", "did you mean memory?")
    assert f"{file}:2:1: unknown key 'memroy'" in first.text
    assert (second.name, second.verdict) == ("configuration", "fail")
    assert f"{file}:3:7: max of group 'a'" in second.text


def test_a_configuration_that_is_named_and_not_there(file, monkeypatch):
    monkeypatch.setenv("GEMLET_CONFIG", str(file))
    assert checked() == [("configuration", "fail", f"{file}: no such file")]


def test_a_configuration_that_no_daemon_needs_beside_that_of_the_system(file, tmp_path):
    file.write_text("[groups.a]\nmemroy = 1\n")
    (tmp_path / "api.sock").touch()
    ((name, verdict, _),) = checked(str(tmp_path))
    assert (name, verdict) == ("configuration", "warn")


@pytest.mark.parametrize(
    ("problem", "verdict", "text"),
    [
        ({"config_error": "a.toml:2:1: bad"}, "fail", "its configuration is not applied: a.toml:2:1: bad"),
        ({"state_error": "no room"}, "warn", "a daemon started after a kill would not know its groups: no room"),
    ],
)
def test_what_a_daemon_says_of_itself(problem, verdict, text):
    daemon = {"kind": "system", "config_error": None, "state_error": None} | problem
    (check,) = doctor_checks._problems_of({"daemon": daemon})
    assert (check.name, check.verdict, check.text) == ("daemon (system)", verdict, text)
    assert check.hint


def test_a_daemon_of_before_says_nothing_of_what_it_does_not_know():
    assert list(doctor_checks._problems_of({"daemon": {"kind": "user"}})) == []


def test_each_check_has_a_name_where_the_runtime_directory_cannot_be_made(monkeypatch):
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", "/proc/gemlet")
    monkeypatch.setattr(doctor_checks, "hook", lambda: iter(()))  # starts a program, and takes longest
    names = [check.name for check in doctor_checks.run_checks(None)]
    assert "runtime directory" in names
    assert names[-1] in ("daemon", "daemons")


def test_a_directory_that_cannot_be_used_is_one_failure(tmp_path, monkeypatch):
    """The daemons are looked at all the same: the system's needs no directory of the user's."""
    taken = tmp_path / "taken"
    taken.touch()
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(taken))
    found = {check.name: check for check in doctor_checks.run_checks(None)}
    assert found["runtime directory"].verdict == "fail"
    assert [name for name, check in found.items() if str(taken) in check.text] == ["runtime directory"]
