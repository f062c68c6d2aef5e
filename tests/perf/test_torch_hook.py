"""What the hook for PyTorch costs programs: a start of Python without PyTorch, and a step that nobody has a use for.

Times are the best of several, because the machine that runs this has other things to do.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from gemlet import paths

START_MILLISECONDS = 2.0  # measured: 0.15
STEP_MICROSECONDS = 50.0  # measured: 1
STEPS, TRIES = 1000, 5


def start_milliseconds() -> float:
    """Of the sitecustomize that a program gets, without one of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": paths.injected_dir(), "GEMLET_TORCH": "dead"}
    command = [sys.executable, "-X", "importtime", "-c", "pass"]
    report = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    # It looks for another one of the same name, which is listed by itself.
    found = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+sitecustomize$", report, re.MULTILINE)
    return sum(int(microseconds) for microseconds in found) / 1000


def test_a_program_without_pytorch_starts_as_fast() -> None:
    times = [start_milliseconds() for _ in range(TRIES)]
    assert 0 < min(times) < START_MILLISECONDS, times


def test_a_step_that_nobody_has_a_use_for_costs_a_call() -> None:
    spec = importlib.util.spec_from_file_location("hook", Path(paths.injected_dir()) / "_gemlet_torch_hook.py")
    assert spec
    assert spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    told: list[object] = []
    hook.tell = told.append
    # sched_yield() answers 0, which is USELESS, after a system call: the library has none.
    library = ctypes.CDLL(None)
    named = SimpleNamespace(
        gemlet_iteration_ends=library.sched_yield, gemlet_dead_begin=library.abort, gemlet_declare_dead=library.exit
    )
    act = hook.Dead(SimpleNamespace(), named)
    torch = SimpleNamespace(
        compiler=SimpleNamespace(is_compiling=lambda: False),
        cuda=SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: False),
    )
    after = hook.after_step(torch, act)
    times = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        for _ in range(STEPS):
            after(None, (), {})
        times.append((time.perf_counter() - begin) / STEPS * 1e6)
    assert not told
    assert min(times) < STEP_MICROSECONDS, times
