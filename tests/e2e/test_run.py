"""`gemlet run` end to end: what the program sees, how it ends, and the daemon behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys

import pytest

from gemlet.cli.demo import has_device
from tests.e2e.programs import ALLOCATE, SPIN
from tests.e2e.shell import Shell
from tests.waiting import eventually

GIB = 1 << 30


def status(gemlet):
    done = gemlet("status", "--simulate", "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("code", [0, 1, 7, 125, 255])
def test_exit_code_passes_through(gemlet, code):
    assert gemlet("run", "--simulate", "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_signal_passes_through(gemlet):
    assert gemlet("run", "--simulate", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_an_instance_in_mig_mode_is_refused(gemlet):
    done = gemlet("run", "--simulate", "--", "true", CUDA_VISIBLE_DEVICES="MIG-ab")
    assert (done.returncode, "MIG-ab is an instance of a GPU in MIG mode" in done.stderr) == (2, True)


def test_no_wrapper_stays(gemlet):
    process = gemlet.start("run", "-q", "--simulate", "--", "sh", "-c", "echo $$; exec sleep 30")
    assert int(process.stdout.readline()) == process.pid


def test_not_found_and_not_executable(gemlet, tmp_path):
    assert gemlet("run", "--simulate", "--", "no-such-program").returncode == 127
    (tmp_path / "data").touch()
    assert gemlet("run", "--simulate", "--", str(tmp_path / "data")).returncode == 126
    (tmp_path / "text").write_text("hello")
    (tmp_path / "text").chmod(0o755)
    assert gemlet("run", "--simulate", "--", str(tmp_path / "text")).returncode == 126


def test_arguments_and_options_of_the_program_are_left_alone(gemlet):
    done = gemlet("run", "--simulate", "--", "printf", "%s|", "--min", "-h", "", "a b")
    assert done.stdout == "--min|-h||a b|"


def test_broken_pipe_ends_the_program(gemlet):
    done = gemlet("run", "--simulate", "--", "sh", "-c", "trap - PIPE; (yes; echo $? >&2) | head -1; exit 0")
    assert "Broken pipe" not in done.stderr


def test_what_was_granted_is_one_line_on_stderr(gemlet):
    done = gemlet("run", "--simulate", "--min", "30%", "--memory", "8GiB", "--", "true")
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gemlet (simulated): group true-1: 30% guaranteed")
    assert gemlet("run", "-q", "--simulate", "--", "true").stderr == ""


def test_without_a_gpu_it_says_so_and_runs_the_program(gemlet):
    if has_device():
        pytest.skip("this machine has a GPU")
    done = gemlet("run", "-q", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    warning, hint = done.stderr.split("\n\n")
    assert warning.startswith("warning: no GPU was found: ")
    assert hint.startswith("hint: use a simulated machine with --simulate")


def test_memory_below_one_context_is_said_before_the_program_runs(gemlet):
    done = gemlet("run", "--simulate", "--memory", "1MiB", "--", sys.executable, "-c", ALLOCATE, "1024")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: 1 MiB of memory is less than one CUDA context takes (at least 64 MiB)")
    assert done.stdout.split()[1] == "2", "the context is made, an allocation is refused"
    again = gemlet("run", "--simulate", "--memory", "1MiB", "--", sys.executable, "-c", ALLOCATE, "1024")
    said = [line for line in again.stderr.splitlines() if "would pass" in line or "raise it" in line]
    assert "a context of" in said[1], again.stderr
    hints = {re.search(r"--memory (\S+) --simulate", line).group(1) for line in said if "raise it" in line}
    assert hints == {"2GiB"}, "the launcher and the hook say the same"


@pytest.mark.parametrize("group", ["a b", "a b;rm", "it's $HOME", "-x"])
def test_the_hint_of_a_refused_allocation_can_be_typed(gemlet, group):
    run = ("run", "-q", "--simulate", "--group", group, "--memory", "1GiB", "--")
    stays = gemlet.start(*run, "sh", "-c", "echo started; exec sleep 600")  # and so does the group meanwhile
    assert stays.stdout.readline() == "started\n"
    done = gemlet(*run, sys.executable, "-c", ALLOCATE, str(4 * GIB))
    assert f"would pass the 1.0 GiB limit of group '{group}' on GPU 0" in done.stderr
    hint = done.stderr.partition("raise it with `gemlet ")[2].partition("`")[0]
    words = ["set", "--memory", "5GiB", "--simulate"]
    assert sorted(set(shlex.split(hint)) - {"--"}) == sorted([*words, group]), hint
    assert "`, or run the program again with `--memory 5GiB`" in done.stderr
    assert gemlet(*shlex.split(hint)).returncode == 0
    explained = json.loads(gemlet("explain", "--simulate", "-o", "json", "--", group).stdout)["hint"]
    assert shlex.split(explained)[:2] == ["gemlet", "run"]
    assert group in shlex.split(explained), explained


def test_a_daemon_that_was_started_for_nothing_goes_again(gemlet):
    for refused in (("run", "--simulate", "--sm", "30%", "--", "true"), ("run", "--simulate", "--device", "7", "true")):
        assert gemlet(*refused).returncode != 0
        assert status(gemlet) is None
    assert gemlet("run", "-q", "--simulate", "--", "true").returncode == 0
    assert gemlet("run", "--simulate", "--sm", "30%", "--", "true").returncode != 0
    assert status(gemlet), "one that was there before stays"


def test_a_simulated_run_has_the_same_configuration_as_a_real_one(gemlet):
    config = gemlet.directory / "config" / "gemlet" / "gemlet.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[groups.team]\nmemory = "3GiB"\n')
    done = gemlet("run", "--simulate", "--group", "team", "--", "true")
    assert "3 GiB of memory" in done.stderr
    assert status(gemlet)["daemon"]["config"] == str(config)


def test_a_relative_name_in_gemlet_config_counts_from_where_it_was_given(gemlet, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text('[groups.team]\nmemory = "3GiB"\n')
    monkeypatch.chdir(tmp_path)
    done = gemlet("run", "--simulate", "--group", "team", "--", "true", GEMLET_CONFIG="mine.toml")
    assert "3 GiB of memory" in done.stderr


def test_refused_when_it_cannot_be_guaranteed(gemlet):
    gemlet.start("run", "--simulate", "--min", "0.8", "--", "sleep", "30")
    eventually(lambda: status(gemlet) and status(gemlet)["groups"])
    done = gemlet("run", "--simulate", "--min", "0.3", "--", "true")
    assert done.returncode == 125
    assert "cannot be guaranteed" in done.stderr
    assert "hint: ask for --min 20%" in done.stderr


def test_memory_limit_is_what_the_program_sees(gemlet):
    done = gemlet("run", "--simulate", "--memory", "2GiB", "--", sys.executable, "-c", ALLOCATE, str(1 * GIB))
    assert done.stdout.split() == [str(2 * GIB), "0"], done.stderr
    done = gemlet("run", "--simulate", "--memory", "2GiB", "--", sys.executable, "-c", ALLOCATE, str(3 * GIB))
    assert done.stdout.split() == [str(2 * GIB), "2"], done.stderr


def test_two_at_once_start_one_daemon(gemlet):
    processes = [gemlet.start("run", "--simulate", "--", "sleep", "0.5") for _ in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    log = (gemlet.directory / "sim" / "daemon.log").read_text()
    assert log.count("started pid=") == 1
    assert log.count("granted") == 4


def test_at_a_prompt_it_says_at_the_end_what_was_used(gemlet):
    shell = Shell(gemlet.environment(SPIN=SPIN))
    try:
        shell.type(
            f'{sys.executable} -m gemlet run --simulate --group team -- {sys.executable} -c "$SPIN" 3; echo $?x\n'
        )
        said = shell.expect(r"gemlet \(simulated\): group team: used ([\d.]+) s of device time in (\d+) s .*")
        assert float(said.group(1)) > 0
        assert shell.expect(r"(\d+)x").group(1) == "0"
    finally:
        shell.close()
    later = gemlet("report", "--simulate", "team")
    assert later.stdout.startswith("team (simulated): used ")
    assert json.loads(gemlet("report", "--simulate", "team", "-o", "json").stdout)["device_s"] > 0
    assert "had no program" in gemlet("report", "--simulate", "other").stderr
    unknown = gemlet("history", "--simulate", "other")
    assert (unknown.returncode, unknown.stdout) == (125, "")
    assert "no group other" in unknown.stderr


def test_a_client_is_seen_with_its_group_and_device(gemlet):
    program = gemlet.start("run", "--simulate", "--group", "team", "--", sys.executable, "-c", SPIN, "600")
    assert program.stdout.readline() == "ready\n", program.stderr.read()

    def running():
        devices = status(gemlet)["devices"]
        groups = [group for device in devices for group in device["groups"] if group["name"] == "team"]
        return groups and groups[0]["clients"] and groups[0]["used_s"] > 0.2 and groups[0]

    group = eventually(running)
    (client,) = group["clients"]
    assert client["pid"] == program.pid
    assert client["contexts"] == 1
    eventually(lambda: (running()["share"]["1s"] or 0) > 0)
    assert "team" in gemlet("explain", "--simulate", "team").stdout
    shown = gemlet("status", "--simulate").stdout
    assert "SIMULATED" in shown
    assert str(program.pid) in shown
    for piped in (("--once",), ()):  # without a terminal it does the same by itself, and ends
        assert gemlet("top", "--simulate", *piped).stdout.split("\n")[0] == shown.split("\n")[0]


def test_kill_9_of_the_daemon_and_restart_under_a_running_program(gemlet):
    run = ("run", "-q", "--simulate", "--group", "team", "--memory", "4GiB", "--")
    program = gemlet.start(*run, sys.executable, "-c", SPIN, "600")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    first = eventually(lambda: status(gemlet))["daemon"]["pid"]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: gemlet("status", "--simulate").returncode == 125)
    assert "limits of memory stay" in program.stderr.readline()
    assert gemlet("run", "-q", "--simulate", "--", "true").returncode == 0

    def back():
        document = status(gemlet)
        groups = [g for d in document["devices"] for g in d["groups"] if g["name"] == "team"]
        return document["daemon"]["pid"] != first and groups and groups[0]["clients"] and groups[0]

    group = eventually(back)
    assert group["clients"][0]["pid"] == program.pid
    assert group["memory_limit"] == 4 * GIB
    assert program.poll() is None


def test_stop_lets_programs_run_on(gemlet):
    program = gemlet.start("run", "--simulate", "--", sys.executable, "-c", SPIN, "2")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    assert gemlet("stop", "--simulate").returncode == 0
    out, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert "done" in out


def test_strict_does_not_run_on_without_a_daemon(gemlet):
    program = gemlet.start("run", "-q", "--simulate", "--strict", "--", sys.executable, "-c", SPIN, "600")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    assert gemlet("stop", "--simulate").returncode == 0
    assert "work waits for it" in program.stderr.readline()  # tests/sim/robustness: and what then


def test_limits_can_change_while_it_runs(gemlet):
    program = gemlet.start("run", "--simulate", "--group", "team", "--", sys.executable, "-c", SPIN, "600")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    assert gemlet("set", "--simulate", "team", "--max", "25%").returncode == 0

    def share():
        groups = [g for d in status(gemlet)["devices"] for g in d["groups"] if g["name"] == "team"]
        return groups[0]["share"]["1s"]

    eventually(lambda: 0 < (share() or 0) < 0.31)  # less where this machine has no time for the program


def test_simulated_and_real_are_never_mixed(gemlet):
    assert gemlet("run", "-q", "--simulate", "--", "true").returncode == 0
    assert json.loads(gemlet("status", "-o", "json").stdout)["daemon"] is None
    assert status(gemlet)["simulated"] is True


def test_a_nested_run_uses_the_same_daemon(gemlet):
    inner = " ".join([sys.executable, "-m", "gemlet.cli.main", "run", "--group", "inner", "--", "sh", "-c", "'env'"])
    done = gemlet("run", "-q", "--simulate", "--group", "outer", "--", "sh", "-c", inner)
    assert done.returncode == 0, done.stderr
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert values["GEMLET_GROUP"] == "inner"
    assert values["LD_PRELOAD"].count("libgemhook") == 1
    assert done.stderr.startswith("gemlet (simulated): group inner")


def test_a_daemon_that_does_not_start_says_why(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text("[groups.team]\nmin = 2\n")
    done = gemlet("run", "--", "true", GEMLET_CONFIG=str(config))
    assert done.returncode == 125
    assert done.stderr.startswith("error: the daemon did not start")
    assert f"{config}:2:" in done.stderr


def test_the_daemon_sees_the_machine_that_the_program_asked_for(gemlet):
    run = ("run", "-q", "--simulate", "--device", "1", "--", "true")
    assert gemlet(*run, GEMLET_SIM_DEVICES="2").returncode == 0
    assert [device["index"] for device in status(gemlet)["devices"]] == [0, 1]


def test_a_named_daemon_is_not_started(gemlet, tmp_path):
    done = gemlet("--socket", str(tmp_path), "run", "--", "true")
    assert done.returncode == 125
    assert "no daemon at" in done.stderr
