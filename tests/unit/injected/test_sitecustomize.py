"""What `gemlet run` puts before a program's own Python modules, seen from programs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemlet import paths

LIBRARY = """
#include <stdint.h>
#include <stdio.h>
int gemlet_iteration_ends(void) { return 2; }
uint64_t gemlet_dead_begin(void) { return 7; }
int64_t gemlet_declare_dead(uint64_t ticket, const uint64_t* starts, const uint64_t* bytes, uint64_t count) {
    printf("ticket %d:", (int)ticket);
    for (uint64_t i = 0; i < count; ++i) printf(" %lx+%lx", (unsigned long)starts[i], (unsigned long)bytes[i]);
    puts("");
    fflush(stdout);
    return 0;
}
"""
TORCH = """
from types import SimpleNamespace
import torch.optim
compiler = SimpleNamespace(is_compiling=lambda: False)
blocks = [{"size": 1 << 21, "state": "active_allocated"}, {"size": 3 << 20, "state": "inactive"}]
cuda = SimpleNamespace(
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: False,
    get_allocator_backend=lambda: "native",
    memory_snapshot=lambda: [{"address": 1 << 30, "segment_pool_id": (0, 0), "blocks": blocks}],
    empty_cache=lambda: print("emptied", flush=True),
)
"""
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook(None, (), {})
"""
LOOK = "import sys; print('sitecustomize' in sys.modules, [p for p in sys.path if 'injected' in p])"


class Programs:
    """Runs Python code in a directory of modules, with gemlet's in front or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "torch/optim").mkdir(parents=True)
        (folder / "torch/__init__.py").write_text(TORCH)
        (folder / "torch/optim/__init__.py").write_text("from . import optimizer\n")
        (folder / "torch/optim/optimizer.py").write_text(OPTIMIZER)

    def __call__(self, code: str, *, ours: bool = True, what: str = "dead", preload: str = "", options=()):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GEMLET", "COV"))}
        path = [paths.injected_dir()] if ours else []
        env["PYTHONPATH"] = os.pathsep.join([*path, str(self.folder)])
        if ours:
            env["GEMLET_TORCH"] = what
        if preload:
            env["LD_PRELOAD"] = preload
        return subprocess.run(
            [sys.executable, *options, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=50
        )

    def both(self, code: str, **more) -> tuple[str, str]:
        """What it prints without gemlet and with it."""
        plain, ours = self(code, ours=False, **more), self(code, **more)
        assert (plain.returncode, ours.returncode) == (0, 0), plain.stderr + ours.stderr
        assert plain.stderr.splitlines()[-1:] == ours.stderr.splitlines()[-1:]
        return plain.stdout, ours.stdout


@pytest.fixture
def programs(tmp_path):
    return Programs(tmp_path)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the hook was not tried with a library")
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-o", folder / "library.so", folder / "library.c"]
    subprocess.run(command, check=True)
    return str(folder / "library.so")


def test_it_leaves_no_trace(programs):
    plain, ours = programs.both(LOOK)
    assert plain == ours
    plain, ours = programs.both("import sys; print(sorted(sys.modules), sys.path)")
    assert plain == ours


def test_the_programs_own_sitecustomize_runs(programs):
    own = programs.folder / "sitecustomize.py"
    own.write_text("import sys; print('own', __name__, __file__, sys.path[1:3])\nvalue = 3\n")
    plain, ours = programs.both("import sitecustomize; print(sitecustomize.value, sitecustomize.__spec__.origin)")
    assert plain == ours
    assert plain.count("own sitecustomize") == 1


def test_its_errors_are_reported_as_usual(programs):
    (programs.folder / "sitecustomize.py").write_text("import nothing_of_this_name\n")
    plain, ours = programs.both(LOOK)
    assert plain == ours
    (programs.folder / "sitecustomize.py").write_text("raise ValueError('own fault')\n")
    plain, ours = programs.both(LOOK)
    assert plain == ours


def test_pytorch_is_not_imported_by_it(programs):
    done = programs("import sys; print('torch' in sys.modules, 'ctypes' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]


STEP = "import torch, sys; sys.modules['torch.optim.optimizer'].step()"


def test_unused_blocks_are_declared_after_a_step(programs, library):
    done = programs(STEP, preload=library)
    assert (done.stdout, done.stderr) == ("ticket 7: 40200000+300000\n", "")


@pytest.mark.parametrize(
    "code",
    [
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STEP!r}])",
        f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {STEP!r}])",
        "import multiprocessing, runpy; m = multiprocessing.get_context('spawn')\n"
        "import torch\np = m.Process(target=exec, args=(" + repr(STEP) + ",)); p.start(); p.join()",
    ],
    ids=["subprocess", "exec", "spawn"],
)
def test_children_too(programs, library, code):
    done = programs(code, preload=library)
    assert (done.stdout, done.stderr) == ("ticket 7: 40200000+300000\n", "")


def test_the_cache_is_emptied_after_a_step(programs):
    done = programs(STEP, what="empty-cache")
    assert (done.stdout, done.stderr) == ("emptied\n", "")


def test_without_the_library_the_program_goes_on(programs):
    done = programs(STEP + "; print('went on')")
    assert (done.stdout, done.stderr) == ("went on\n", "")


def test_the_module_is_what_it_would_be(programs):
    code = (
        "import torch, sys, inspect; m = sys.modules['torch.optim.optimizer']; "
        "print(type(m.__loader__), m.__spec__.loader is m.__loader__, vars(m.__loader__), inspect.getsource(m.step), "
        "[f for f in sys.meta_path if 'Watcher' in str(f)])"
    )
    plain, ours = programs.both(code)
    assert plain == ours


def test_a_python_that_ignores_its_environment_goes_on_without(programs, library):
    assert programs("print(1)", options=("-I",), preload=library).stdout == "1\n"
    assert programs("print(1)", options=("-S",), preload=library).stdout == "1\n"


REAL = """
import sys, torch
seen = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.get_allocator_backend = lambda: "native"
blocks = [{"size": 3 << 20, "state": "inactive"}]
torch.cuda.memory_snapshot = lambda: [{"address": 1 << 30, "segment_pool_id": (0, 0), "blocks": blocks}]
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.AdamW([parameter])
def step():
    parameter.square().sum().backward()
    optimizer.step()
step()
torch.compile(step, backend="eager")()
hook, = seen.values()
@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    hook(optimizer, (), {})
    return x + 1
compiled(torch.ones(1))
print(len(seen), "hook, steps done")
"""


def test_with_pytorch_itself(programs, library):
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        pytest.skip("PyTorch is not installed: the hook was tried with a double of it only")
    shutil.rmtree(programs.folder / "torch")
    programs.folder = Path(found.origin).parents[1]
    done = programs(REAL, preload=library)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "ticket 7: 40000000+300000"
    assert done.stdout.splitlines()[-1] == "1 hook, steps done"
