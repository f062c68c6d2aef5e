"""The simulated nvidia-cuda-mps-control: how its daemon starts, answers and ends."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.sim.driver.mps_machine import deadline

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine
    from tests.sim.driver.mps_machine import Mps


def test_it_starts_serves_and_quits(mps: Mps) -> None:
    started = mps.control("-d")
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    assert sorted(p.name for p in mps.pipe.iterdir()) == ["control", "nvidia-cuda-mps-control.pid", "simulated"]
    assert (mps.pipe / "control").is_socket()
    assert sorted(p.name for p in mps.log.iterdir()) == ["control.log", "server.log"]
    pid = mps.daemon_pid()
    assert mps.ask("get_server_list") == ""  # a server starts with its first client, or when it is told to
    assert mps.ask(f"start_server -uid {os.getuid()}") == ""
    assert mps.ask("get_server_list") == str(pid)
    assert mps.ask(f"get_server_status {pid}") == "ACTIVE"
    assert mps.ask(f"get_client_list {pid}") == ""
    assert mps.ask("ps").split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert mps.ask(f"shutdown_server {pid}") == ""
    assert mps.ask("get_server_list") == ""
    assert mps.ask("quit") == ""
    assert not list(mps.pipe.iterdir())  # it has ended when quit returns
    assert "Starting control daemon using socket" in (mps.log / "control.log").read_text()


def test_a_second_one_in_the_same_directory_is_refused(mps: Mps) -> None:
    assert mps.control("-d").returncode == 0
    again = mps.control("-d")
    assert (again.returncode, again.stdout) == (1, "An instance of this daemon is already running\n")
    assert mps.control("-f").returncode == 1
    assert mps.ask("get_default_active_thread_percentage") == "100.0"  # the first one still serves


def test_without_a_daemon_commands_say_so(mps: Mps) -> None:
    asked = mps.control(commands="get_server_list\n")
    assert (asked.returncode, asked.stdout) == (1, "Cannot find MPS control daemon process\n")


def test_killed_it_leaves_a_directory_the_next_one_takes(mps: Mps) -> None:
    assert mps.control("-d").returncode == 0
    pid = mps.daemon_pid()
    os.kill(pid, signal.SIGKILL)
    for _ in deadline(60):
        if mps.control(commands="ps\n").returncode == 1:
            break
    assert mps.control("-d").returncode == 0
    assert mps.daemon_pid() != pid
    assert mps.ask("get_default_active_thread_percentage") == "100.0"


def test_sigterm_ends_it_cleanly(mps: Mps) -> None:
    process = mps.start_in_foreground()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert not list(mps.pipe.iterdir())


def test_percentages(mps: Mps) -> None:
    assert mps.control("-d", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="60").returncode == 0
    pid = mps.daemon_pid()
    assert mps.ask("get_default_active_thread_percentage") == "60.0"
    assert mps.ask("set_default_active_thread_percentage 40.5") == "40.5"
    assert mps.ask("start_server -uid 0") == ""
    assert mps.ask("set_default_active_thread_percentage 20") == "20.0"
    assert mps.ask(f"get_active_thread_percentage {pid}") == "40.5"  # the default applies to the next server
    assert mps.ask(f"set_active_thread_percentage {pid} 30") == "30.0"
    assert mps.ask(f"get_active_thread_percentage {pid}") == "30.0"
    assert mps.ask("set_default_active_thread_percentage 0").startswith("Invalid percentage")
    assert mps.ask("set_default_active_thread_percentage 101").startswith("Invalid percentage")
    assert mps.ask("get_default_active_thread_percentage") == "20.0"
    assert mps.ask("get_active_thread_percentage 1").endswith("not found")


def test_several_commands_at_once_and_an_unknown_one(mps: Mps) -> None:
    assert mps.control("-d").returncode == 0
    done = mps.control(commands="get_default_active_thread_percentage\n\nnonsense\nget_default_client_priority\nquit\n")
    first, unknown, priority = done.stdout.splitlines()
    assert (first, priority, done.returncode) == ("100.0", "0", 0)
    assert unknown.startswith("Unknown command nonsense")


def test_a_long_pipe_directory_works(mps: Mps) -> None:
    mps.pipe = mps.pipe / ("long" * 30)
    assert mps.control("-d").returncode == 0
    assert mps.ask("get_default_active_thread_percentage") == "100.0"


def test_a_log_directory_that_cannot_be_made_is_an_error(mps: Mps, machine: SimulatedMachine) -> None:
    (machine.folder / "file").write_text("")
    mps.log = machine.folder / "file" / "logs"
    refused = mps.control("-d")
    assert refused.returncode == 1
    assert str(mps.log) in refused.stdout
    assert not list(mps.pipe.iterdir())


def test_it_keeps_no_file_of_its_starter_open(mps: Mps) -> None:
    reader, writer = os.pipe()
    assert mps.control("-d", pass_fds=(writer,)).returncode == 0
    os.close(writer)
    assert os.read(reader, 1) == b""  # would block while the daemon had the other end
    os.close(reader)
