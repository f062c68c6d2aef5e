"""The daemon's control daemon over the API, with a control program of a few lines: start, find again, stop, fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gemlet.cli import environment
from gemlet.daemon import mps as daemon_mps
from gemlet.daemon.processes import Peer
from gemlet.devices import mps
from gemlet.errors import DaemonUnreachable, Refused
from tests.unit.daemon import fakes
from tests.waiting import eventually

PROGRAM = str(Path(__file__).parents[2] / "mps_control.sh")


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "DEFAULT_PIPE_DIRECTORY", str(tmp_path / "default"))
    monkeypatch.setattr(daemon_mps, "FAREWELL_SECONDS", 0.5)
    monkeypatch.setenv("GEMLET_MPS_CONTROL", PROGRAM)


@pytest.fixture
def started(start_daemon, tmp_path):
    """A daemon with MPS on; both are ended whatever the test did."""
    daemon = start_daemon()
    assert daemon.call("mps_start")["changed"]
    yield daemon
    if alive := mps.control_of(tmp_path / "mps" / "pipe"):
        os.kill(alive.pid, signal.SIGKILL)


def pipe(daemon) -> Path:
    return daemon.endpoint.mps / "pipe"


def use(daemon, *pids: int) -> None:
    """Makes ``pids`` programs under MPS."""
    (pipe(daemon) / "servers").write_text(f"{os.getpid()}\n")
    (pipe(daemon) / "clients").write_text("".join(f"{pid}\n" for pid in pids))


def state(daemon) -> str:
    return daemon.call("mps")["state"]


def control_pid(daemon) -> int:
    return daemon.call("mps")["pid"]


def test_off_until_somebody_starts_it(start_daemon):
    daemon = start_daemon()
    document = daemon.call("mps")
    assert (document["schema"], document["state"], document["pid"]) == (1, "off", None)
    daemon.call("join", group="g")
    assert not daemon.endpoint.mps.exists()
    assert daemon.call("status")["mps"]["state"] == "off"


def test_started_once(started):
    document = started.call("mps")
    assert document["state"] == "on"
    assert document["program"] == PROGRAM
    assert document["pipe_directory"] == str(pipe(started))
    again = started.call("mps_start")
    assert not again["changed"]
    assert again["mps"]["pid"] == document["pid"]
    assert any(event["kind"] == "mps" and event["text"] == "started" for event in started.call("events"))


def test_stopped_once(started):
    pid = control_pid(started)
    assert started.call("mps_stop")["changed"]
    assert mps.process(pid) is None
    assert state(started) == "off"
    assert not started.call("mps_stop")["changed"]


def test_a_program_gets_the_variables(started):
    joined = started.call("join", group="g", limits={"sm": 0.3, "priority": "best-effort"})
    assert joined["environment"] == {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe(started)),
        "CUDA_MPS_LOG_DIRECTORY": str(started.endpoint.mps / "log"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    assert (joined["mps"], joined["sm_in_force"]) == ("on", True)
    assert started.call("environment", group="g")["environment"] == joined["environment"]
    inner = started.call("join", group="g", pipe_directory=str(pipe(started)))
    assert inner["environment"] == joined["environment"]  # gemlet's own directory does not count as a user's wish


def test_a_fraction_without_mps_is_refused_and_makes_no_group(start_daemon):
    daemon = start_daemon()
    with pytest.raises(Refused, match="--sm 30% needs MPS") as error:
        daemon.call("join", group="g", limits={"sm": 0.3})
    assert error.value.hint == "start it with `gemlet mps start`"
    assert daemon.call("status")["groups"] == []


def test_a_group_with_a_fraction_takes_turns_without_mps(started):
    started.call("join", group="g", limits={"sm": 0.3})
    started.call("mps_stop")
    joined = started.call("join", group="g")
    assert (joined["environment"], joined["mps"], joined["sm_in_force"]) == ({}, "off", False)
    started.server.add_client("g", pid=77)
    lines = "\n".join(started.call("explain", group="g")["lines"])
    assert "30% of the multiprocessors are not in force for 77: not under MPS, so it takes turns" in lines
    assert started.call("explain", group="g")["hint"].startswith("gemlet mps start")
    (group,) = started.call("status")["devices"][0]["groups"]
    assert (group["sm"], group["sm_in_force"], group["clients"][0]["mps"]) == (0.3, False, False)


def test_a_fraction_in_force_is_said(started):
    started.call("join", group="g", limits={"sm": 0.3})
    started.server.add_client("g", pid=77)["mps"] = True
    assert "30% of the multiprocessors are in force" in "\n".join(started.call("explain", group="g")["lines"])
    (group,) = started.call("status")["devices"][0]["groups"]
    assert group["sm_in_force"]


def test_the_control_daemon_is_believed_where_the_hook_is_silent(started):
    started.call("join", group="g", limits={"sm": 0.3})
    started.server.add_client("g", pid=os.getpid())
    use(started, os.getpid())
    started.call("mps")

    def in_force() -> bool:
        (group,) = started.call("status")["devices"][0]["groups"]
        return (group["sm_in_force"], group["clients"][0]["mps"]) == (True, True)

    eventually(in_force)  # a status may be a little older than the answer before it


def test_not_stopped_under_programs(started):
    started.call("join", group="team")
    started.server.add_client("team", pid=os.getpid())
    use(started, os.getpid(), os.getppid())
    with pytest.raises(Refused, match=rf"2 programs use MPS: .*\({os.getpid()}, group team\)") as error:
        started.call("mps_stop")
    assert "-t 30" in error.value.hint
    assert "--force" in error.value.hint
    assert state(started) == "on"
    # A status may be a little older than the answer before it.
    (server,) = eventually(lambda: started.call("status")["mps"]["servers"])
    assert len(server["clients"]) == 2


@pytest.mark.parametrize(("arguments", "command"), [({"force": True}, "quit -t 1"), ({"seconds": 7}, "quit -t 7")])
def test_programs_are_ended_only_on_demand(started, arguments, command):
    use(started, os.getpid())
    assert started.call("mps_stop", **arguments)["changed"]
    assert command in (started.endpoint.mps / "log" / "commands").read_text().splitlines()


def test_a_control_daemon_that_does_not_end(started, monkeypatch):
    monkeypatch.setattr(daemon_mps, "END_SECONDS", 0.3)
    pid = control_pid(started)
    (pipe(started) / "stays").touch()
    with pytest.raises(Refused, match=f"pid {pid}.* has not ended yet") as error:
        started.call("mps_stop")
    assert f"kill {pid}" in error.value.hint
    assert state(started) == "stopping"
    with pytest.raises(Refused, match="is being stopped"):
        started.call("mps_start")
    assert started.call("mps_stop", force=True)["changed"]  # by SIGTERM
    assert mps.process(pid) is None


def test_a_control_daemon_that_does_not_answer(started, monkeypatch):
    monkeypatch.setattr(mps.Control.ask, "__kwdefaults__", {"seconds": 0.3})
    monkeypatch.setattr(daemon_mps, "END_SECONDS", 0.3)
    (pipe(started) / "hangs").touch()
    assert "does not answer" in started.call("mps")["problem"]
    with pytest.raises(Refused, match="cannot find out"):
        started.call("mps_stop")
    assert state(started) == "on"
    assert started.call("mps_stop", force=True)["changed"]
    eventually(lambda: not running(PROGRAM))  # what asked it in vain has been given up, too


def running(program: str) -> list[int]:
    """Processes with ``program`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if program.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_one_that_ended_by_itself_is_reported_and_not_restarted(started):
    pid = control_pid(started)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: state(started) == "failed")
    eventually(lambda: any("ended unexpectedly" in event["text"] for event in started.call("events")))
    with pytest.raises(Refused, match="ended unexpectedly"):
        started.call("join", limits={"sm": 0.3})
    assert started.call("join", group="g")["environment"] == {}
    time.sleep(0.3)
    assert state(started) == "failed"
    assert started.call("mps_start")["changed"]
    assert state(started) == "on"


def test_a_failed_start_is_an_error_and_leaves_nothing(start_daemon, monkeypatch):
    monkeypatch.setenv("FAKE_MPS_START", "fails")
    daemon = start_daemon()
    with pytest.raises(Refused, match="exit code 3") as error:
        daemon.call("mps_start")
    assert "no device" in error.value.hint
    assert state(daemon) == "off"


def test_a_failed_start_leaves_no_control_daemon_that_does_not_listen(start_daemon, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_MPS_START", "lives")
    monkeypatch.setattr(mps, "START_SECONDS", 0.5)
    monkeypatch.setattr(daemon_mps, "UNDO_SECONDS", 0.5)
    monkeypatch.setattr(daemon_mps, "TERM_SECONDS", 5.0)
    daemon = start_daemon()
    with pytest.raises(Refused, match="does not answer within"):
        daemon.call("mps_start")
    assert mps.control_of(tmp_path / "mps" / "pipe") is None
    assert state(daemon) == "off"


def test_a_control_daemon_that_comes_after_it_was_given_up_is_found(start_daemon, monkeypatch, tmp_path):
    """Else nothing ever stops it: the next start would remove the directory in which it can be asked to end."""
    monkeypatch.setenv("FAKE_MPS_START", "late")
    monkeypatch.setenv("FAKE_MPS_LATE", "2")
    monkeypatch.setattr(mps, "PID_SECONDS", 0.1)
    daemon = start_daemon()
    with pytest.raises(Refused, match="started nothing"):
        daemon.call("mps_start")
    late = eventually(lambda: mps.control_of(tmp_path / "mps" / "pipe"))
    try:
        again = daemon.call("mps_start")
        assert again["mps"]["pid"] == late.pid
        assert daemon.call("mps_stop")["changed"]
        assert mps.process(late.pid) is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(late.pid, signal.SIGKILL)


def test_one_that_was_started_just_before_a_kill_is_found(started, start_daemon):
    """The one before it had ended by itself: what is written down is that one."""
    first = control_pid(started)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: state(started) == "failed")
    written = (started.endpoint.mps / "state.json").read_bytes()
    started.call("mps_start")
    second = control_pid(started)
    started.service.mps.let_go = nothing
    started.stop()
    (started.endpoint.mps / "state.json").write_bytes(written)
    daemon = start_daemon(server=fakes.FakeServer())
    assert (state(daemon), control_pid(daemon)) == ("on", second)
    assert daemon.call("mps_stop")["changed"]
    assert mps.process(second) is None


def test_another_process_with_the_pid_of_a_dead_one_is_left_alone(start_daemon, tmp_path):
    """The file outlives a control daemon that was killed, and a pid is given again."""
    place = tmp_path / "mps" / "pipe"
    place.mkdir(parents=True)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (place / mps.PID_FILE).write_text(f"{stranger.pid}\n")
        an_hour_ago = time.time() - 3600
        os.utime(place / mps.PID_FILE, (an_hour_ago, an_hour_ago))
        daemon = start_daemon()
        assert state(daemon) == "off"
        assert not daemon.call("mps_stop", force=True)["changed"]
        assert daemon.call("mps_start")["changed"]
        assert daemon.call("mps_stop")["changed"]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_missing_program_is_an_error(start_daemon, monkeypatch):
    monkeypatch.setenv("GEMLET_MPS_CONTROL", "/nonexistent/control")
    with pytest.raises(Refused, match="/nonexistent/control is not a program"):
        start_daemon().call("mps_start")


def test_the_next_daemon_finds_it(started, start_daemon):
    pid = control_pid(started)
    # What a kill -9 leaves: the control daemon, its directory and what was meant.
    started.service.mps.let_go = nothing
    started.stop()
    second = start_daemon(server=fakes.FakeServer())
    assert control_pid(second) == pid
    assert second.call("join", limits={"sm": 0.5})["sm_in_force"]
    assert second.call("mps_stop")["changed"]


def test_a_reboot_does_not_count_as_a_failure(started, start_daemon, monkeypatch):
    started.service.mps.let_go = nothing
    started.stop()
    pid = mps.control_of(pipe(started)).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: mps.process(pid) is None)
    assert (
        start_daemon(server=fakes.FakeServer(), directory=started.endpoint.directory).call("mps")["state"] == "failed"
    )
    start_daemon.running[-1].stop()
    monkeypatch.setattr(daemon_mps, "_boot_id", lambda: "another")
    assert start_daemon(server=fakes.FakeServer()).call("mps")["state"] == "off"


async def nothing() -> None:
    """In place of `Mps.let_go`."""


def test_it_ends_with_the_daemon(started):
    pid = control_pid(started)
    started.stop()
    assert mps.process(pid) is None
    assert not (started.endpoint.mps / "state.json").exists()


def test_programs_keep_it_beyond_the_end_of_the_daemon(started, start_daemon):
    pid = control_pid(started)
    (pipe(started) / "stays").touch()
    started.stop()
    assert mps.process(pid) is not None
    second = start_daemon(server=fakes.FakeServer())
    assert state(second) == "stopping"
    assert second.call("join", group="g")["environment"] == {}  # it takes no new programs
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: state(second) == "off")


def test_another_control_daemon_is_left_alone(start_daemon, tmp_path):
    other = tmp_path / "default"
    other.mkdir()
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        (other / mps.PID_FILE).write_text(f"{sleeper.pid}\n")
        daemon = start_daemon()
        (foreign,) = daemon.call("mps")["foreign"]
        assert (foreign["pid"], foreign["pipe_directory"]) == (sleeper.pid, str(other))
        with pytest.raises(Refused, match=f"another MPS control daemon runs: pid {sleeper.pid}"):
            daemon.call("mps_start")
        assert state(daemon) == "off"
        assert daemon.call("mps_start", force=True)["changed"]
        assert daemon.call("mps_stop")["changed"]
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_control_daemon_where_the_caller_would_look(start_daemon, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / mps.PID_FILE).write_text(f"{os.getpid()}\n")
    daemon = start_daemon()
    with pytest.raises(Refused, match="another MPS control daemon runs"):
        daemon.call("mps_start", places=[str(own)])
    said = environment.own_pipes({"CUDA_MPS_PIPE_DIRECTORY": str(own)})
    joined = daemon.call("join", group="g", limits={"sm": 0.25}, **said)
    assert joined["environment"] == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}


def test_a_daemon_looks_at_no_directory_that_a_user_names(start_daemon, monkeypatch, tmp_path):
    """It may be on a file system that never answers, of a server that is gone or of the user's own making."""
    place = str(tmp_path / "hangs")
    look = mps.control_of
    monkeypatch.setattr(mps, "control_of", lambda path: pytest.fail("looked") if str(path) == place else look(path))
    daemon = start_daemon()
    daemon.call("join", group="g", pipe_directory=place)
    daemon.call("environment", group="g", pipe_directory=place)
    monkeypatch.setattr("gemlet.daemon.api.caller", lambda _, **__: Peer(pid=1, uid=12345))
    daemon.call("mps", places=[place])


def test_mps_keeps_the_daemon_from_ending_of_idleness(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon()
    daemon.call("mps_start")
    # Only now, or a daemon of a busy machine ends before it has MPS.
    daemon.service.options = replace(daemon.service.options, idle_exit=0.4)
    time.sleep(1.0)
    assert state(daemon) == "on"
    daemon.call("mps_stop")
    daemon.thread.join(60)
    with pytest.raises(DaemonUnreachable):
        daemon.connect()


def test_set_says_whether_mps_is_on(started):
    started.call("join", group="g")
    changed = started.call("set", group="g", limits={"sm": 0.4})
    assert (changed["granted"]["sm"], changed["mps"]) == (0.4, "on")
    assert started.call("join", group="g")["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
