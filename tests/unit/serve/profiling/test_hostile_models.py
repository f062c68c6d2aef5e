"""`gemlet profile` with models that do not end, or end their process: the budget is kept, and what was measured too."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet.cli.main import run
from gemlet.serve.profiles import profile_files
from gemlet.serve.profiles.profile import Probe
from gemlet.serve.profiling import apart, guard
from gemlet.serve.profiling.steps import Latency, Probes
from gemlet.serve.profiling.taking import Found, Taken, sound
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[4]
MACHINE = "tests.unit.serve.profiling.played_machine"
TENSOR = "[{name: X, datatype: FP32, shape: [1]}]"
CONFIG = f"platform: python\nmax_batch: 1\ninputs: {TENSOR}\noutputs: {TENSOR}\n"
GOOD = "def load(spec):\n    return lambda groups, batch: None\n"
LOADS = "import os, signal, sys, time, ctypes\ndef load(spec):\n    {}\n    return lambda groups, batch: None\n"
RUNS = """
import os, signal, sys, time, ctypes
def load(spec):
    calls = []
    def infer(groups, batch):
        if groups == 1:  # the second step: the first one is measured
            {}
    return infer
"""
HANGS = {
    "loop": "while True: pass",
    "holds the interpreter": "ctypes.PyDLL(None).sleep(1000)",
    "ignores signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; time.sleep(1000)",
    "catches everything": "exec('while True:\\n  try: time.sleep(1000)\\n  except BaseException: pass')",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
}
ENDS = {
    "os._exit(0)": ("os._exit(0)", "exit code 0"),
    "os._exit(7)": ("os._exit(7)", "exit code 7"),
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL: perhaps the memory"),
    "closes all": ("os.closerange(0, 4096)", "closed"),
    "redirects all": (
        "n = os.open('/dev/null', 2); [os.dup2(n, int(i)) for i in os.listdir('/proc/self/fd') if int(i) != n]",
        "closed",
    ),
    "raises": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "its text raises": (
        "raise type('Odd', (BaseException,), {'__str__': lambda self: os.kill(os.getpid(), 9)})",
        "SIGKILL",
    ),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A repository of models with this code; those that are good come before and after the bad one."""
    monkeypatch.setattr(apart, "MACHINE", MACHINE)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")

    def make(**code: str) -> Path:
        for name, each in code.items():
            folder = tmp_path / "models" / name / "1"
            folder.mkdir(parents=True)
            (folder / "model.py").write_text(each)
            (folder.parent / "config.yaml").write_text(CONFIG)
        return tmp_path / "models"

    return make


def measured(models: Path, capfd: pytest.CaptureFixture[str], budget: float = 6.0) -> tuple[int, set[str], str]:
    """The exit status, which models the file has, and what was said."""
    file = models.parent / "profile.json"
    code = run(["profile", str(models), "-o", str(file), "--budget", str(budget)])
    out, err = capfd.readouterr()
    assert out == "", "standard output is for data"
    return code, set(profile_files.load_profiles(file).models) if file.exists() else set(), err


def test_good_models(repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, found, err = measured(repository(a=GOOD, b=GOOD), capfd, 60)
    assert (code, found) == (0, {"a", "b"}), err


@pytest.mark.parametrize(
    ("where", "how"),
    [(LOADS if number % 2 else RUNS, how) for number, how in enumerate(HANGS)],
    ids=HANGS,
)
def test_a_model_that_hangs_is_ended_and_leaves_the_others_their_time(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str], where: str, how: str
) -> None:
    begin = time.monotonic()
    code, found, err = measured(repository(a=GOOD, b=where.format(HANGS[how]), c=GOOD), capfd)
    assert time.monotonic() - begin < 60
    assert code == 1
    assert found == ({"a", "c"} if where is LOADS else {"a", "b", "c"}), err
    assert "error: b: " in err
    assert "budget" in err
    assert "hint: the same command continues" in err


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("where", [LOADS, RUNS], ids=["load", "run"])
def test_a_model_that_ends_its_process_is_told_of_and_leaves_the_others_alone(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str], where: str, how: str
) -> None:
    code, found, err = measured(repository(a=GOOD, b=where.format(ENDS[how][0]), c=GOOD), capfd, 60)
    assert code == 1
    assert found == ({"a", "c"} if where is LOADS else {"a", "b", "c"}), err
    assert "error: b: " in err
    assert ENDS[how][1] in err


def test_nothing_that_a_model_starts_outlives_it(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also what has a session of its own, ignores signals and belongs to nobody."""
    pids = tmp_path / "pids"
    daemon = f"""
import os, signal, time
def load(spec):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
            if os.fork() == 0:
                with open({str(pids)!r}, "a") as file:
                    file.write(f"{{os.getpid()}}\\n")
                time.sleep(1000)
            os._exit(0)
    while open({str(pids)!r}, "a+").tell() == 0: time.sleep(0.01)
    return lambda groups, batch: None
"""
    code, found, err = measured(repository(a=daemon, b=GOOD), capfd, 60)
    assert (code, found) == (0, {"a", "b"}), err
    started = [int(line) for line in pids.read_text().split()]
    assert started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_what_is_another_process_at_each_moment_is_ended_too(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    hops = """
import os, time
def load(spec):
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if os.fork(): os._exit(0)
        os._exit(0)
    return lambda groups, batch: None
"""
    code, found, err = measured(repository(a=hops, b=GOOD), capfd, 60)
    assert (code, found) == (0, {"a", "b"}), err
    assert not _of_profiles()


def test_what_a_model_gave_up_and_has_ended_is_no_process_any_more(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that starts something at each run would use up the numbers of processes."""
    orphans = """
import os, time
from gemlet.serve.profiling import guard
def load(spec):
    for _ in range(20):
        if (child := os.fork()) == 0:
            if os.fork() == 0: time.sleep(0.01)
            os._exit(0)
        os.waitpid(child, 0)
    end = time.monotonic() + 30
    while guard.descendants(os.getppid()) != {os.getpid()}:
        if time.monotonic() > end: raise TimeoutError(guard.descendants(os.getppid()))
        time.sleep(0.01)
    return lambda groups, batch: None
"""
    code, found, err = measured(repository(a=orphans), capfd, 120)
    assert (code, found) == (0, {"a"}), err


def test_a_group_is_stopped_whichever_of_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a process that is another one at each moment cannot get away."""
    children = tmp_path / "children"
    script = f"echo $$ > {children}; sleep 1000 & echo $! >> {children}; wait"
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True) as group:
        try:
            eventually(lambda: children.exists() and len(children.read_text().split()) == 2, 60)
            found = int(children.read_text().split()[1])
            monkeypatch.setattr(guard, "descendants", lambda _: {found})
            monkeypatch.setattr(guard, "_reap", lambda: True)  # this process has children of others
            guard._stop(os.getpid(), time.monotonic() + 60)
            for pid in children.read_text().split():
                eventually(lambda pid=pid: _state(pid) == "T", 60)
        finally:
            os.killpg(group.pid, signal.SIGKILL)


def _state(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_cannot_be_stopped_does_not_hold_up_the_guard_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def found(_: int) -> set[int]:
        seen.append(-1 - len(seen))  # the number of no process
        return {seen[-1]}

    monkeypatch.setattr(guard, "descendants", found)
    monkeypatch.setattr(guard, "_reap", lambda: True)
    monkeypatch.setattr(guard, "_send", lambda *_: None)
    guard._stop(os.getpid(), time.monotonic())
    assert len(seen) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_a_model_that_ends_or_stops_its_guard(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    harms = LOADS.format(f"os.kill(os.getppid(), {number:d}); time.sleep(1000)")
    code, found, err = measured(repository(a=harms, b=GOOD), capfd, 6)
    assert (code, found) == (1, {"b"}), err
    assert not _of_profiles()


def _of_profiles() -> list[str]:
    """Processes that this one has started for models."""
    below = guard.descendants(os.getpid())
    return [str(pid) for pid in below if "gemlet.serve.profiling" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_a_child_that_comes_back_from_the_model_answers_nothing(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    code, found, err = measured(repository(a=LOADS.format("os.fork()"), b=GOOD), capfd, 60)
    assert (code, found) == (0, {"a", "b"}), err


def test_what_a_model_leaves_behind_is_not_the_next_ones(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    alarm = LOADS.format("signal.setitimer(signal.ITIMER_REAL, 0.3)")
    slow = LOADS.format("time.sleep(1)")
    code, found, err = measured(repository(a=alarm, b=slow), capfd, 60)
    assert (code, found) == (0, {"a", "b"}), err


def test_what_a_model_prints_is_no_data_and_fills_no_log(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    loud = LOADS.format("[print('x' * 1000) for _ in range(20_000)]; os.write(1, b'y' * 5_000_000)")
    code, found, err = measured(repository(a=loud), capfd, 60)
    assert (code, found) == (0, {"a"}), err[-1000:]
    assert len(err) < 8_000_000
    assert "left out" in err


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0])
def test_numbers_that_make_no_sense_are_no_profile(wrong: float) -> None:
    step = Latency(1, (1, 2))
    good = Found(1, 2.0, 0.1)
    assert sound(step, Taken((good, Found(2, 3.0, 0.0))), 2)
    assert not sound(step, Taken((good, Found(2, wrong, 0.0))), 2)
    assert not sound(step, Taken((good,)), 2), "one is missing"
    assert not sound(step, Taken((), (Probe("dram", 0.5, 1, 1.0, 1.0),)), 2)
    probes = Probes(1, 1, ("dram",))
    assert sound(probes, Taken(probes=(Probe("dram", 0.5, 1, 1.0, 1.0),)), 2)
    assert not sound(probes, Taken(probes=(Probe("l2", 0.5, 1, 1.0, 1.0),)), 2)


def test_a_model_that_does_not_let_go_keeps_its_numbers(
    repository: Callable[..., Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "CLOSE_SECONDS", 0.5)
    stays = """
import time
class Infer:
    def __call__(self, groups, batch): pass
    def close(self): time.sleep(1000)
def load(spec): return Infer()
"""
    code, found, err = measured(repository(a=stays, b=GOOD), capfd, 60)
    assert (code, found) == (1, {"a", "b"})
    assert "unloading" in err


def test_where_gemlet_is_killed_the_model_goes_too(
    repository: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    writes = f"open({str(told)!r}, 'w').write(str(os.getpid())); os.fork(); os.setsid(); time.sleep(1000)"
    models = repository(a=LOADS.format(writes))
    script = (
        f"from gemlet.serve.profiling import apart; apart.MACHINE = {MACHINE!r}\n"
        f"from gemlet.cli.main import run; run(['profile', {json.dumps(str(models))}, '-o', {str(tmp_path / 'p')!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as gemlet:
        eventually(lambda: told.exists() and told.read_text(), 60)
        pid = int(told.read_text())
        gemlet.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 30)
