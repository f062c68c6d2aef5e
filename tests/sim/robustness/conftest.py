"""Real processes through the real hook and server on a private simulated machine, and ways to hurt them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from gemlet.errors import GemletError
from tests.compiled import compiled, cuda_include
from tests.sim.robustness.hurt_machine import CONTEXT, Machine, Served, serving

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
if TYPE_CHECKING:
    from collections.abc import Iterator


def _missing() -> str | None:
    try:
        paths.hook_path()
        paths.sim_dir()
        importlib.import_module("gemlet._native")
    except (GemletError, ImportError) as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    for item in items:
        if reason is not None and FOLDER in item.path.parents and "machine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=f"the native parts are not built: {reason}"))


@pytest.fixture(scope="session")
def program() -> Path:
    """tests/sim/robustness/program.c, compiled against the simulated driver."""
    driver = Path(paths.sim_dir()) / "libcuda.so.1"
    options = ("-O1", "-g", f"-isystem{cuda_include()}", driver, "-ldl", "-pthread")
    return compiled("cc", *options, sources=(FOLDER / "program.c",))


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("m"), program)
    yield made
    for running in made.started:
        if running.poll() is None:
            running.kill()
        running.communicate()


@pytest.fixture
def served(machine: Machine) -> Iterator[Served]:
    with serving(machine, context_estimate=CONTEXT) as made:
        yield made
