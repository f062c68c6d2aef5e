"""The hook in front of the simulated driver: every lookup it can answer, and its accounting against the machine's."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from tests.sim.hook.conftest import FOLDER, ROOT
from tests.sim.hook.test_lookup import hooks_def

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sim.hook.conftest import Built


OUT_OF_MEMORY = "2"
MIB = 1 << 20


@pytest.fixture
def simulated(tmp_path: Path) -> dict[str, str]:
    folder = paths.sim_dir()
    if not os.path.exists(f"{folder}/libcuda.so.1"):  # noqa: PTH110
        pytest.skip(f"the simulated machine is not built in {folder}")
    return {"LD_LIBRARY_PATH": folder, "GEMLET_SIM_DIR": str(tmp_path / "machine"), "GEMLET_SIM_DEVICES": "1"}


def test_every_lookup_answers_as_the_driver_does(built: Built, simulated: dict[str, str]) -> None:
    """Every name x CUDA version x stream flag: the same variant and status, and ours exactly if it is hooked."""
    table = json.loads((ROOT / "native/sim/driver-580.json").read_text())
    hooked = set(hooks_def()[0])
    lookups = [
        part for name in sorted(table["proc_address"]) for version in table["versions"] for flag in (0, 1, 2)
        for part in (name, str(version), str(flag))
    ]  # fmt: skip
    # A command line holds so much only.
    for start in range(0, len(lookups), 30_000):
        arguments = ("probe", "get", "2", *lookups[start : start + 30_000])
        plain = built.run(*arguments, preload=(), env=simulated)
        ours = built.run(*arguments, env=simulated)
        assert (plain.returncode, ours.returncode, ours.stderr) == (0, 0, plain.stderr)
        for before, after in zip(plain.stdout.splitlines(), ours.stdout.splitlines(), strict=True):
            symbol = before.split()[-1]
            assert after == (before.replace(" driver ", " hook ") if symbol in hooked else before)


def test_accounting_is_the_machines(built: Built, simulated: dict[str, str]) -> None:
    script = str(FOLDER / "simulated_memory.py")
    done = built.run(
        sys.executable, script, str(built.hook), env=simulated | {"GEMLET_TEST_LIMIT": str(64 * MIB)}
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {name: rest for name, *rest in (line.split() for line in done.stdout.splitlines())}
    refused = {name for name, (result, *_) in steps.items() if result == OUT_OF_MEMORY}
    assert refused == {"alloc_beyond", "small_beyond", "create_beyond", "pooled_beyond"}
    assert all(result in {"0", OUT_OF_MEMORY} for result, *_ in steps.values()), steps
    wrong = {name: rest for name, rest in steps.items() if rest[1] != rest[2] and name != "reset"}
    assert not wrong, done.stdout
    assert steps["reset"][1] == "0"


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemCreate", "cuMemAllocAsync", "cuMemAllocManaged"])
def test_a_failing_driver_leaves_nothing_behind(built: Built, simulated: dict[str, str], function: str) -> None:
    script = str(FOLDER / "simulated_memory.py")
    env = simulated | {"GEMLET_TEST_LIMIT": str(64 * MIB), "GEMLET_SIM_FAULTS": f"{function}:*=2"}
    done = built.run(sys.executable, script, str(built.hook), env=env)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        name, _, ours, machine = line.split()
        assert ours == machine or name == "reset", done.stdout
