"""The scenarios of tests/sim/sharing on a GPU, with the README's floors. Run with: pytest tests/gpu"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import scenarios
from tests.scenarios import Machine

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    listed = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    if not listed or listed.returncode:
        pytest.skip("no NVIDIA GPU: nvidia-smi finds none")
    return Machine(simulate=False, workdir=tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("first", [0.75, 0.5, 0.9])
def test_two_groups_get_their_shares(machine: Machine, first: float) -> None:
    total, error = scenarios.two_groups(machine, first)
    assert total >= 0.98
    assert error <= 0.025


@pytest.mark.parametrize("cap", [0.1, 0.25, 0.5])
def test_a_maximum_binds_a_lone_group(machine: Machine, cap: float) -> None:
    assert scenarios.capped(machine, cap) <= 0.02


def test_alone_costs_nothing(machine: Machine) -> None:
    assert scenarios.alone(machine) >= 0.995


def test_a_neighbour_comes_and_goes(machine: Machine) -> None:
    during, after = scenarios.arrival(machine)
    assert during == pytest.approx(0.3, abs=0.03)
    assert after >= 0.98


@pytest.mark.timeout(600)
def test_frameworks_run_unmodified(machine: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.frameworks"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
