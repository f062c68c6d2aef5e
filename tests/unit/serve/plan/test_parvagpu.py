"""ParvaGPU's public request sets, with its authors' measurements: how many GPUs a plan needs."""

from __future__ import annotations

from typing import Any

import pytest

from bench import parvagpu
from gemlet.serve.plan.model import Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.verify import verify
from tests.counting import calls

EXACT = PlanOptions(quantile=0.5, grid=10, executor="mps")  # one process a gpu-let, as it was measured


def gpus_needed(policy: str) -> list[int]:
    known = parvagpu.profiles()
    counts = []
    for wanted in parvagpu.demands().values():
        made = plan(known, wanted, Inventory(gpus=64), None, EXACT, policy=policy)
        assert isinstance(made, Plan)
        assert verify(made, known, Inventory(gpus=64), EXACT) == []
        counts.append(len(made.gpus))
    return counts


def test_the_sets_are_read_as_they_are() -> None:
    sets = parvagpu.demands()
    assert [len(wanted) for wanted in sets.values()] == [6, 11, 11, 11, 11, 11]
    assert [(d.model, d.rate, d.slo_ms) for d in sets["S1"]][:2] == [("bert", 19, 6434), ("densenet121", 353, 183)]
    resnet = parvagpu.profiles().models["resnet50"].surface
    assert resnet.latency(1 / 7, 32) == pytest.approx(1000 * 32 / 412.097)


def test_one_model_a_gpu_needs_what_is_published() -> None:
    assert gpus_needed("exclusive") == [6, 11, 11, 11, 24, 27]


def test_two_way_partitions_stay_behind_n_way() -> None:
    two_way, n_way = sum(gpus_needed("gpulet")), sum(gpus_needed("nway"))
    assert n_way <= 44  # ParvaGPU's own deployment needs 46
    assert n_way < two_way < 60


def test_no_plan_takes_long() -> None:
    """In calls of functions: 365,000 when this was written, in a tenth of a second."""
    known = parvagpu.profiles()
    for wanted in parvagpu.demands().values():

        def planned(wanted: Any = wanted) -> object:
            return plan(known, wanted, Inventory(gpus=64), None, EXACT, policy="nway+type")

        assert calls(planned) < 1_000_000
