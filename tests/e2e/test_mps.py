"""`gemlet mps` and `gemlet run --sm` end to end, with the simulated machine's nvidia-cuda-mps-control."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemlet import paths
from gemlet.cli import serve_mps
from tests.e2e.programs import COOPERATIVE, MULTIPROCESSORS, SPIN
from tests.waiting import eventually

FAKE_PROGRAM = str(Path(__file__).parents[1] / "mps_control.sh")


def mps(gemlet):
    done = gemlet("mps", "status", "--simulate", "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def started(gemlet):
    done = gemlet("mps", "start", "--simulate")
    assert done.returncode == 0, done.stderr
    yield gemlet
    gemlet("mps", "stop", "--simulate", "--force")


def spin(gemlet, *options):
    program = gemlet.start("run", "--simulate", *options, "--", sys.executable, "-c", SPIN, "60")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    return program


def multiprocessors(gemlet, *options, **changes):
    done = gemlet("run", "-q", "--simulate", *options, "--", sys.executable, "-c", MULTIPROCESSORS, **changes)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def own_part(gemlet, *options):
    """How many a program may use, as it sees where the user wants it to."""
    return multiprocessors(gemlet, *options, GEMLET_MULTIPROCESSORS="")


def test_start_status_stop(gemlet):
    done = gemlet("mps", "start", "--simulate")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("MPS of the simulated machine is on: control daemon ")
    document = mps(gemlet)
    assert (document["schema"], document["simulated"], document["state"]) == (1, True, "on")
    assert Path(document["pipe_directory"]).is_relative_to(gemlet.directory)
    assert alive(document["pid"])
    again = gemlet("mps", "start", "--simulate")
    assert (again.returncode, "is on already" in again.stderr) == (0, True)
    assert mps(gemlet)["pid"] == document["pid"]
    shown = gemlet("mps", "status", "--simulate").stdout
    assert shown.startswith("SIMULATED MACHINE  MPS on: control daemon")
    assert "MPS on: control daemon" in gemlet("status", "--simulate").stdout
    assert "MPS (simulated)" in gemlet("doctor").stdout
    done = gemlet("mps", "stop", "--simulate")
    assert (done.returncode, done.stderr) == (0, "MPS is off\n")
    assert not alive(document["pid"])
    assert gemlet("mps", "stop", "--simulate").stderr == "MPS is off already\n"
    assert mps(gemlet)["state"] == "off"


def test_a_fraction_without_mps_is_an_error(gemlet):
    done = gemlet("run", "--simulate", "--sm", "30%", "--", "true")
    assert done.returncode == 125
    hint = "hint: start it with `gemlet mps start --simulate`\n"
    assert done.stderr == "error: --sm 30% needs MPS, which does not run\n\n" + hint
    assert gemlet("run", "--simulate", "--sm", "100%", "--", "true").returncode == 0


def test_a_program_under_a_fraction_is_told_of_the_whole_device(started):
    """By that number libraries choose their kernels; for parts of it some compute wrong results (docs/mps.md)."""
    whole = multiprocessors(started, "--no-mps")
    assert multiprocessors(started) == whole
    assert multiprocessors(started, "--sm", "30%") == whole


def test_a_program_is_told_of_its_fraction_where_the_user_wants_it(started):
    whole = multiprocessors(started, "--no-mps")
    third = own_part(started, "--sm", "30%")
    assert 0.2 * whole < third < 0.4 * whole
    assert own_part(started, "--group", "half", "--sm", "0.5") > third


def test_a_cooperative_launch_that_is_too_large_is_explained(started):
    def launched(*options, **changes):
        return started("run", "--simulate", *options, "--", sys.executable, "-c", COOPERATIVE, **changes)

    assert launched().stdout == "[0, 0]\n"
    refused = launched("--sm", "30%")
    assert refused.stdout == "[720, 720]\n"  # CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    assert refused.stderr.count("hint: GEMLET_MULTIPROCESSORS=") == 1
    asked = launched("--sm", "30%", GEMLET_MULTIPROCESSORS="")
    assert (asked.stdout, "hint: GEMLET_MULTIPROCESSORS=" in asked.stderr) == ("[0, 0]\n", False)


def test_a_run_within_a_run_has_its_own_fraction(started):
    whole = multiprocessors(started, "--no-mps")
    inner = ["run", "-q", "--simulate", "--group", "inner", "--sm", "20%", "--", sys.executable, "-c", MULTIPROCESSORS]
    outer = started("run", "-q", "--simulate", "--sm", "30%", "--", *started.command(*inner))
    assert int(outer.stdout) == whole


def test_fractions_that_fit_run_side_by_side(started):
    for group in ("a", "b"):
        spin(started, "--group", group, "--sm", "50%")

    def together():
        (device,) = json.loads(started("status", "--simulate", "-o", "json").stdout)["devices"]
        return (device["share"]["1s"] or 0.0) > 1.2  # each holds its part nearly all of the time

    eventually(together)


def test_set_holds_for_those_that_start_later(started):
    program = spin(started, "--group", "team", "--sm", "50%")
    half = own_part(started, "--group", "team")
    done = started("set", "--simulate", "team", "--sm", "25%")
    assert "25% of the multiprocessors, for processes that `gemlet run` starts from now on" in done.stderr
    assert own_part(started, "--group", "team") < half
    assert program.poll() is None


def test_clients_are_named_and_not_ended(started):
    program = spin(started, "--group", "team", "--sm", "50%")
    client = eventually(lambda: [c for server in mps(started)["servers"] for c in server["clients"]])[0]
    assert (client["pid"], client["group"]) == (program.pid, "team")
    document = json.loads(started("status", "--simulate", "-o", "json").stdout)
    (group,) = [group for device in document["devices"] for group in device["groups"] if group["name"] == "team"]
    assert (group["sm"], group["sm_in_force"], group["clients"][0]["mps"]) == (0.5, True, True)
    assert "50% of the multiprocessors are in force" in started("explain", "--simulate", "team").stdout
    assert str(program.pid) in started("mps", "status", "--simulate").stdout
    done = started("mps", "stop", "--simulate")
    assert done.returncode == 125
    assert f"({program.pid}, group team)" in done.stderr
    assert "`gemlet mps stop -t 30 --simulate`" in done.stderr
    assert program.poll() is None
    assert mps(started)["state"] == "on"


@pytest.mark.parametrize("option", [["--force"], ["-t", "1"]])
def test_clients_are_ended_on_demand(started, option):
    program = spin(started, "--sm", "50%")
    eventually(lambda: mps(started)["servers"])
    pid = mps(started)["pid"]
    done = started("mps", "stop", "--simulate", *option)
    assert done.returncode == 0, done.stderr
    assert not alive(pid)
    assert program.wait(60) != 0  # its next CUDA call fails


def test_stop_waits_for_programs(started):
    short = started.start("run", "-q", "--simulate", "--", sys.executable, "-c", SPIN, "2")
    assert short.stdout.readline() == "ready\n", short.stderr.read()
    assert started("mps", "stop", "--simulate", "-t", "50").returncode == 0
    assert short.wait(60) == 0
    assert started("mps", "stop", "--simulate", "-t", "5", "--force").returncode == 2


def test_the_next_daemon_finds_it(started):
    document = mps(started)
    daemon = json.loads(started("status", "--simulate", "-o", "json").stdout)["daemon"]["pid"]
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: started("status", "--simulate").returncode == 125)
    assert alive(document["pid"])
    whole = multiprocessors(started, "--no-mps")
    assert own_part(started, "--sm", "50%") < whole
    assert mps(started)["pid"] == document["pid"]
    assert started("mps", "stop", "--simulate").returncode == 0
    assert not alive(document["pid"])


def test_it_ends_with_the_daemon(started):
    pid = mps(started)["pid"]
    assert started("stop", "--simulate").returncode == 0
    eventually(lambda: not alive(pid))


def test_programs_outlive_the_daemon_under_mps(started):
    program = started.start("run", "-q", "--simulate", "--", sys.executable, "-c", SPIN, "3")
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    pid = mps(started)["pid"]
    assert started("stop", "--simulate").returncode == 0
    assert program.wait(60) == 0, program.stderr.read()
    eventually(lambda: not alive(pid))


def test_one_that_died_is_reported(started):
    os.kill(mps(started)["pid"], signal.SIGKILL)
    eventually(lambda: mps(started)["state"] == "failed")
    doctor = started("doctor")
    assert doctor.returncode == 1
    assert "ended unexpectedly" in doctor.stdout
    done = started("run", "--simulate", "--sm", "30%", "--", "true")
    assert (done.returncode, "ended unexpectedly" in done.stderr) == (125, True)
    assert started("run", "--simulate", "--", "true").returncode == 0
    assert started("mps", "start", "--simulate").returncode == 0


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_what_others_put_where_cuda_looks_for_mps_holds_up_no_program(gemlet, tmp_path, kind):
    """CUDA's default place is in /tmp: who comes first may put there what blocks when it is opened or read."""
    pid_file = tmp_path / "nvidia-cuda-mps-control.pid"
    ours = theirs = -1
    if kind == "pipe":
        os.mkfifo(pid_file)
    else:
        ours, theirs = os.openpty()
        pid_file.symlink_to(os.ttyname(theirs))
    program = gemlet.start(
        "run", "-q", "--simulate", "--", sys.executable, "-c", SPIN, "0.1", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path)
    )
    try:
        assert program.wait(60) == 0, program.stderr.read()
    finally:
        program.kill()
        for descriptor in {ours, theirs} - {-1}:
            os.close(descriptor)


@pytest.fixture
def foreign(tmp_path):
    """A control daemon that is not gemlet's: the variables that lead to it."""
    program = f"{paths.sim_dir()}/nvidia-cuda-mps-control"
    directories = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "p"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "l")}
    variables = os.environ | directories | {"GEMLET_SIM_DIR": str(tmp_path / "m")}
    (tmp_path / "m").mkdir()
    subprocess.run([program, "-d"], env=variables, check=True, timeout=30)
    yield directories
    subprocess.run([program], env=variables, input=b"quit -t 1\n", check=True, timeout=30)


def test_a_foreign_control_daemon(gemlet, foreign):
    done = gemlet("mps", "start", "--simulate", **foreign)
    assert done.returncode == 125
    assert "another MPS control daemon runs: pid " in done.stderr
    assert foreign["CUDA_MPS_PIPE_DIRECTORY"] in done.stderr
    run = ("run", "-q", "--simulate", "--sm", "30%", "--", "env")
    values = dict(line.split("=", 1) for line in gemlet(*run, **foreign).stdout.splitlines() if "=" in line)
    assert values["CUDA_MPS_PIPE_DIRECTORY"] == foreign["CUDA_MPS_PIPE_DIRECTORY"]
    assert values["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    absent = gemlet("run", "--simulate", "--sm", "30%", "--", "true", CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    assert (absent.returncode, "no control daemon lives in /nonexistent" in absent.stderr) == (125, True)
    assert gemlet("mps", "start", "--simulate", "--force", **foreign).returncode == 0
    assert gemlet("mps", "stop", "--simulate").returncode == 0


def test_env_and_nested_runs(started):
    pipe = mps(started)["pipe_directory"]
    spin(started, "-q", "--group", "outer")  # the group is there as long as its program
    env = ("env", "--simulate", "--group", "outer")
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipe}" in started(*env).stdout
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipe}-none" in started(*env, "--no-mps").stdout
    inner = " ".join([sys.executable, "-m", "gemlet.cli.main", "run", "--group", "inner", "--", "env"])
    done = started("run", "-q", "--simulate", "--sm", "30%", "--", "sh", "-c", inner)
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert values["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in values  # inner's group has no fraction


@pytest.mark.parametrize(
    ("variables", "words", "hint"),
    [
        ({"GEMLET_MPS_CONTROL": "/nonexistent/control"}, "is not a program", "correct or unset GEMLET_MPS_CONTROL"),
        ({"GEMLET_MPS_CONTROL": FAKE_PROGRAM, "FAKE_MPS_START": "fails"}, "failed with exit code 3", "no device"),
        ({"GEMLET_MPS_CONTROL": FAKE_PROGRAM, "FAKE_MPS_START": "nothing"}, "started nothing", "no word in"),
    ],
)
def test_a_control_program_that_does_not_work(gemlet, variables, words, hint):
    assert gemlet("run", "-q", "--simulate", "--", "true", **variables).returncode == 0
    done = gemlet("mps", "start", "--simulate", **variables)
    assert done.returncode == 125
    assert words in done.stderr
    assert hint in done.stderr
    assert mps(gemlet)["state"] == "off"
    assert gemlet("run", "--simulate", "--", "true").returncode == 0


def test_a_start_that_fails_leaves_no_daemon(gemlet):
    done = gemlet("mps", "start", "--simulate", GEMLET_MPS_CONTROL="/nonexistent/control")
    assert done.returncode == 125
    assert "no daemon at" in gemlet("status", "--simulate").stderr
    assert not (gemlet.directory / "sim" / "api.sock").exists()


def test_without_a_daemon(gemlet):
    for verb in ("status", "stop"):
        done = gemlet("mps", verb, "--simulate")
        assert done.returncode == 125
        assert "hint: `gemlet mps start --simulate` starts both" in done.stderr


def test_a_missing_program_on_a_real_machine(gemlet):
    done = gemlet("mps", "start", PATH="/nonexistent")
    assert done.returncode == 125
    assert "nvidia-cuda-mps-control is not on PATH" in done.stderr
    assert "GEMLET_MPS_CONTROL names it elsewhere" in done.stderr


def test_executors_of_a_server_find_the_mps_that_gemlet_started(started):
    pipes = mps(started)["pipe_directory"]
    socket = str(Path(pipes).parents[1])  # the daemon's directory
    found: dict[str, str] = {}
    serve_mps.join(socket, found)
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    assert Path(found["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
    named = {"CUDA_MPS_PIPE_DIRECTORY": "/somewhere/else"}
    serve_mps.join(socket, named)
    assert named == {"CUDA_MPS_PIPE_DIRECTORY": "/somewhere/else"}
    assert started("mps", "stop", "--simulate").returncode == 0
    nothing: dict[str, str] = {}
    serve_mps.join(socket, nothing)
    assert started("stop", "--simulate").returncode == 0
    serve_mps.join(socket, nothing)
    assert nothing == {}


def test_a_benchmark_leaves_no_mps_behind():
    from bench.own_mps import mps_of_gemlet

    with mps_of_gemlet(simulate=True) as environment:
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        pid = int((pipes / "nvidia-cuda-mps-control.pid").read_text())
        assert alive(pid)
    eventually(lambda: not alive(pid))
    assert not pipes.exists()
