"""What the hook for PyTorch costs programs: a start of Python without PyTorch, and a step that nobody has a use for.

In modules and calls, which are counted; bench/start.py measures the times.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from gemlet import paths
from tests.counting import calls

MODULES = {"sitecustomize"}  # that the hook may import where Python alone does not
STEP_CALLS = 16  # 8 when this was written, which took 1 us


def imported(**changes: str) -> set[str]:
    """By a Python that only starts; also what is gone again."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | changes
    command = [sys.executable, "-X", "importtime", "-c", "pass"]
    report = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    return set(re.findall(r"^import time:[\s\d|]+\|\s+(\S+)$", report, re.MULTILINE))


def test_a_program_without_pytorch_imports_next_to_nothing() -> None:
    with_hook = imported(PYTHONPATH=paths.injected_dir(), GEMLET_TORCH="dead")
    assert "sitecustomize" in with_hook
    assert with_hook - imported() <= MODULES


def test_a_step_without_a_use_costs_one_call() -> None:
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
    after(None, (), {})  # the first one may look around
    assert max(calls(lambda: after(None, (), {})) for _ in range(100)) <= STEP_CALLS
    assert not told
