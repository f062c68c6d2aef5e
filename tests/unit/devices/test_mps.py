"""The control program's interface, with a control program of a few lines in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemlet.devices import mps
from gemlet.devices.mps import Control, MpsError, control_of, find_program, parse_pids, parse_server_status, process

PROGRAM = str(Path(__file__).parents[2] / "mps_control.sh")


@pytest.fixture
def control(tmp_path):
    made = Control(PROGRAM, pipe=tmp_path / "pipe", log=tmp_path / "log")
    yield made
    if alive := control_of(made.pipe):
        os.kill(alive.pid, signal.SIGKILL)


def ended(pid: int, seconds: float = 60.0) -> bool:
    give_up = time.monotonic() + seconds
    while process(pid) is not None and time.monotonic() < give_up:
        time.sleep(0.01)
    return process(pid) is None


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("", ()),
        ("4711\n", (4711,)),
        ("  12 \n34\n\n", (12, 34)),
        ("Cannot find MPS control daemon process\n", ()),
        ("Server 12 not found\n", ()),
        ("0\n-3\n", ()),
        ("²\n" + "9" * 5000 + "\n12\n", (12,)),
    ],
)
def test_pids(text, pids):
    assert parse_pids(text) == pids


@pytest.mark.parametrize(
    ("text", "status"), [("ACTIVE\n", "ACTIVE"), ("", ""), ("\n", ""), ("Server 12 FAULT\n", "FAULT"), ("init", "INIT")]
)
def test_server_status(text, status):
    assert parse_server_status(text) == status


def test_a_process_is_seen_while_it_lives():
    mine = process(os.getpid())
    assert mine is not None
    assert mine.uid == os.getuid()
    assert mine.started > 0
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    assert ended(child.pid)  # a zombie has ended, though nobody has collected it
    child.wait()
    assert process(child.pid) is None


def test_a_process_lives_on_after_its_first_thread():
    program = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    stat = Path("/proc", str(child.pid), "stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert child.poll() is None
        time.sleep(0.01)
    found = process(child.pid)
    assert found is not None
    assert found.started > 0
    child.kill()
    assert ended(child.pid)
    child.communicate()


@pytest.mark.parametrize("content", ["", "abc\n", "-1\n", "0\n", f"{2**31}\n", f"{2**22 + 1}\n"])
def test_a_pid_file_that_names_nobody(tmp_path, content):
    (tmp_path / mps.PID_FILE).write_text(content)
    assert control_of(tmp_path) is None
    assert control_of(tmp_path / "absent") is None


def test_a_pid_file_that_is_none_does_not_block(tmp_path):
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / mps.PID_FILE)
    assert control_of(tmp_path / "pipe") is None
    (tmp_path / "folder" / mps.PID_FILE).mkdir(parents=True)
    assert control_of(tmp_path / "folder") is None
    assert control_of("nul\0byte") is None


def test_started_asked_and_told_to_end(control):
    started = control.start()
    found = control_of(control.pipe)
    assert found is not None
    assert (found.pid, found.started) == (started.pid, started.started)  # its name changes until it is what it executes
    assert control.pipe.stat().st_mode & 0o777 == 0o700
    (control.pipe / "servers").write_text(f"{os.getppid()}\n")
    (control.pipe / "clients").write_text(f"{os.getpid()}\n{2**22 + 1}\n")
    (server,) = control.servers()
    assert (server.pid, server.status) == (os.getppid(), "ACTIVE")
    assert [client.pid for client in server.clients] == [os.getpid()]  # the other one has ended
    control.quit()
    assert ended(started.pid)
    assert (control.log / "commands").read_text().splitlines()[-1].strip() == "quit"


@pytest.mark.parametrize(("seconds", "command"), [(None, "quit"), (30, "quit -t 30"), (0, "quit -t 1")])
def test_how_it_is_told_to_end(control, seconds, command):
    pid = control.start().pid
    control.quit(seconds=seconds)
    assert ended(pid)
    assert (control.log / "commands").read_text().strip() == command


def test_what_a_dead_one_left_is_removed(control):
    control.pipe.mkdir()
    (control.pipe / "control").touch()
    (control.pipe / mps.PID_FILE).write_text("1\n")
    control.start()
    assert sorted(path.name for path in control.pipe.iterdir()) == [mps.PID_FILE]


def test_what_is_meant_for_programs_does_not_reach_it(control, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    environment = control.environment()
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(control.pipe)
    for name in ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD"):
        assert name not in environment


def test_a_start_that_fails_says_why(control, monkeypatch):
    monkeypatch.setenv("FAKE_MPS_START", "fails")
    with pytest.raises(MpsError, match="exit code 3") as error:
        control.start()
    assert "no device" in error.value.hint


def test_a_start_that_starts_nothing(control, monkeypatch):
    monkeypatch.setattr(mps, "PID_SECONDS", 0.1)
    monkeypatch.setenv("FAKE_MPS_START", "nothing")
    with pytest.raises(MpsError, match="started nothing"):
        control.start()


def test_a_start_that_hangs_is_given_up(control, monkeypatch):
    monkeypatch.setattr(mps, "START_SECONDS", 0.3)
    monkeypatch.setenv("FAKE_MPS_START", "hangs")
    with pytest.raises(MpsError, match=r"does not answer within 0\.3 s"):
        control.start()


def test_an_answer_that_does_not_come_is_given_up(control):
    pid = control.start().pid
    (control.pipe / "hangs").touch()
    with pytest.raises(MpsError, match="does not answer") as error:
        control.ask("get_server_list", seconds=0.3)
    assert f"kill {pid}" in error.value.hint


def test_an_answer_that_is_a_failure(control):
    control.start()
    (control.pipe / "fails").touch()
    with pytest.raises(MpsError, match="failed at get_server_list, exit code 3") as error:
        control.servers()
    assert error.value.hint == "it said: out of order"


def test_a_program_that_cannot_be_executed(tmp_path):
    (tmp_path / "empty").touch(mode=0o755)
    broken = Control(str(tmp_path / "empty"), pipe=tmp_path / "pipe", log=tmp_path / "log")
    for what in (broken.start, broken.quit, lambda: broken.ask("get_server_list")):
        with pytest.raises(MpsError, match="cannot be started"):
            what()


def test_a_path_too_long_for_a_socket(tmp_path):
    deep = tmp_path / ("x" * 100)
    with pytest.raises(MpsError, match="too long") as error:
        Control(PROGRAM, pipe=deep / "pipe", log=deep / "log").start()
    assert "GEMLET_RUNTIME_DIR" in error.value.hint
    assert not deep.exists()


def test_where_the_program_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError, match="not on PATH") as error:
        find_program(None, None)
    assert "GEMLET_MPS_CONTROL" in error.value.hint
    with pytest.raises(MpsError, match="simulated machine has no"):
        find_program(None, str(tmp_path))
    (tmp_path / mps.PROGRAM).touch(mode=0o755)
    assert find_program(None, None) == str(tmp_path / mps.PROGRAM)
    assert find_program(None, str(tmp_path)) == str(tmp_path / mps.PROGRAM)
    assert find_program(PROGRAM, None) == PROGRAM
    with pytest.raises(MpsError, match="not a program"):
        find_program(str(tmp_path / "absent"), None)


def test_an_answer_without_end_takes_no_memory_without_end(control):
    control.start()
    (control.pipe / "floods").touch()
    with pytest.raises(MpsError, match="failed at get_server_list") as error:
        control.ask("get_server_list")
    assert len(error.value.hint) < 1000


def test_a_list_without_end_is_given_up(control, monkeypatch):
    control.start()
    (control.pipe / "servers").write_text(f"{os.getpid()}\n" * 5000)
    monkeypatch.setattr(mps, "LIST_SECONDS", 0.2)
    with pytest.raises(MpsError, match="still lists"):
        control.servers()
    (control.pipe / "servers").write_text(f"{os.getpid()}\n")
    (control.pipe / "clients").write_text(f"{os.getpid()}\n" * 100_000)
    with pytest.raises(MpsError, match="still lists"):
        control.servers()
