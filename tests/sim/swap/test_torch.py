"""The hook that `gemlet run` adds to PyTorch, on the real library: what the cache does not use is not copied.

PyTorch itself is a double: the simulated machine has no CUDA runtime.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gemlet import paths

MIB = 1 << 20
TENSORS, CACHED = 4 * MIB, 24 * MIB
Make = "Callable[..., Any]"
TORCH = """
import sys
from types import SimpleNamespace
import torch.optim
compiler = SimpleNamespace(is_compiling=lambda: False)
segments = []
pool = (0, {pool})
cuda = SimpleNamespace(
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: False,
    get_allocator_backend=lambda: "native",
    memory_snapshot=lambda: segments,
)
def step():
    for hook in sys.modules["torch.optim.optimizer"].hooks:
        hook(None, (), {{}})
"""
OPTIMIZER = """
hooks = []
register_optimizer_step_post_hook = hooks.append
"""


@pytest.fixture
def train(swapping: Make, tmp_path: Path) -> Any:
    """Starts a server with room for one program, and two that train, with the hook or not."""

    def start(*, hooked: bool, pool: int = 0) -> tuple[Any, list[Any]]:
        (tmp_path / "torch/optim").mkdir(parents=True)
        (tmp_path / "torch/__init__.py").write_text(TORCH.format(pool=pool))
        (tmp_path / "torch/optim/__init__.py").write_text("from . import optimizer\n")
        (tmp_path / "torch/optim/optimizer.py").write_text(OPTIMIZER)
        script = str(Path(__file__).with_name("torch_program.py"))
        s = swapping(30)
        changes = {"PYTHONPATH": str(tmp_path)}
        if hooked:
            changes = {"PYTHONPATH": os.pathsep.join([paths.injected_dir(), str(tmp_path)]), "GEMLET_TORCH": "dead"}
        programs = []
        for group in "ab":
            running = s.machine.start(group, script, command=sys.executable, **changes)
            assert running.line() == "ready", running.communicate(timeout=60)
            programs.append(running)
        return s, programs

    return start


def moved(s: Any, programs: list[Any], what: str) -> int:
    clients = [c for g in s.device()["groups"] for c in g["clients"] if c["pid"] in [p.pid for p in programs]]
    return sum(int(c["movable"][what]) for c in clients)


def iterate(programs: list[Any], rounds: int) -> None:
    """One iteration of each in turn: each time the other's memory has to go."""
    for program in programs * rounds:
        program.tell("step")
        assert program.line().isdigit(), program.communicate(timeout=60)


def test_only_tensors_are_copied(train: Any) -> None:
    s, programs = train(hooked=True)
    iterate(programs, 2)  # nothing has moved before, so the first ends are of no use
    before = moved(s, programs, "moved_out"), moved(s, programs, "dropped")
    iterate(programs, 3)
    copied, dropped = (
        moved(s, programs, what) - past for what, past in zip(("moved_out", "dropped"), before, strict=True)
    )
    assert dropped >= 5 * CACHED
    assert copied <= 6 * TENSORS


@pytest.mark.parametrize(("hooked", "pool"), [(False, 0), (True, 1)], ids=["without the hook", "of a graph's pool"])
def test_all_of_it_is_copied(train: Any, hooked: bool, pool: int) -> None:
    s, programs = train(hooked=hooked, pool=pool)
    iterate(programs, 3)
    before = moved(s, programs, "moved_out")
    iterate(programs, 2)
    assert moved(s, programs, "moved_out") - before >= 3 * CACHED
    assert moved(s, programs, "dropped") < CACHED
