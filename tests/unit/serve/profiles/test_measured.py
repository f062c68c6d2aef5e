"""Profiles that are part of gemlet: they load, are in order, and plan; what lies between their anchors was measured.

between_h200.json: latencies at sizes and batches between the anchors, measured by bench/profile_check.py on the same
H200 after the profile: [model, share, batch, ms].
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

import pytest

from gemlet.errors import ConfigError
from gemlet.serve.models.built_in import BUILT_IN, DEFAULT
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import profile, profile_files
from gemlet.serve.profiles.surface import Surface
from gemlet.serve.profiling.steps import Latency, share, steps

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

BETWEEN = json.loads(Path(__file__).with_name("between_h200.json").read_text())


@pytest.fixture(scope="module", params=sorted(profile_files.shipped()))
def known(request: pytest.FixtureRequest) -> Profiles:
    return profile_files.load_profiles(Path(request.param))


@pytest.fixture(scope="module")
def h200() -> Profiles:
    return profile_files.load_profiles(Path("h200"))


def test_it_says_where_it_was_measured(known: Profiles) -> None:
    assert known.measured
    assert known.device.driver
    assert {"torch", "cuda"} <= set(known.device.versions)
    assert "commit" in known.note
    assert set(DEFAULT) <= set(known.models) <= set(BUILT_IN)


def test_its_file_holds_the_vectors_that_follow_from_its_probes(known: Profiles) -> None:
    for path in profile_files.shipped().values():
        written = profile.parse(path.read_text(), str(path))
        if written.device == known.device:
            assert written == known


def test_more_batch_is_never_faster_and_more_sms_are_never_slower(known: Profiles) -> None:
    parts = known.device.parts
    for model in known.models.values():
        rows = [model.surface.row(groups / parts)[1:] for groups in range(1, parts + 1)]
        assert all(a <= b for row in rows for a, b in pairwise(row))
        assert all(a * (1 + 1e-9) >= b for low, high in pairwise(rows) for a, b in zip(low, high, strict=True))


def test_every_model_knows_whom_it_disturbs(known: Profiles) -> None:
    for name, model in known.models.items():
        assert model.sensitivity.dram > model.sensitivity.beside > 0, name
        assert 0 < model.pressure.dram < 1, name


@pytest.mark.parametrize("policy", ["timeshare", "gpulet", "nway", "nway+type"])
def test_it_plans(known: Profiles, policy: str) -> None:
    options = PlanOptions(quantile=0.5)
    wanted = [
        Demand(model=name, slo_ms=2 * known.models[name].surface.latency(1.0, 32), rate=400)
        for name in ("resnet50", "bert", "vgg16", "mobilenet_v2")
    ]
    made = plan(known, wanted, Inventory(gpus=4), None, options, policy=policy)
    assert isinstance(made, Plan)
    assert made.origin == "measured"
    assert verify(made, known, Inventory(gpus=4), options) == []


def test_sizes_of_a_plan_are_groups_of_the_device(h200: Profiles) -> None:
    wanted = [Demand(model=name, slo_ms=30, rate=1000) for name in ("resnet50", "bert", "mobilenet_v2")]
    made = plan(h200, wanted, Inventory(gpus=2))
    assert isinstance(made, Plan)
    for gpu_let in (gpu_let for gpu in made.gpus for gpu_let in gpu.gpu_lets):
        assert gpu_let.sm * 15 == pytest.approx(round(gpu_let.sm * 15), abs=1e-4)


def test_what_lies_between_anchors_is_known_to_ten_percent(h200: Profiles) -> None:
    errors = [abs(h200.models[m].surface.latency(s, b) / ms - 1) for m, s, b, ms in BETWEEN]
    assert quantiles(errors, n=10)[-1] < 0.10
    assert max(errors) < 0.15


def test_the_anchors_of_a_quick_run_tell_most_of_it(h200: Profiles) -> None:
    parts = h200.device.parts
    quick = [step for step in steps(parts, 32, quick=True) if isinstance(step, Latency)]
    wanted = {(share(step.groups, parts), batch) for step in quick for batch in step.batches}
    assert len(wanted) == 4
    few = {
        name: Surface([anchor for anchor in model.latency if anchor[:2] in wanted])
        for name, model in h200.models.items()
    }
    assert all(len(surface.shares) == len(surface.batches) == 2 for surface in few.values())
    errors = [abs(few[m].latency(s, b) / ms - 1) for m, s, b, ms in BETWEEN]
    assert quantiles(errors, n=10)[-1] < 0.12
    assert max(errors) < 0.25
    # And at the anchors that a quick run leaves out: here smaller shares with large batches, and models of 0.1 ms.
    left = [
        abs(few[name].latency(s, b) / ms - 1)
        for name, model in h200.models.items()
        for s, b, ms in model.latency
        if (s, b) not in wanted
    ]
    assert quantiles(left, n=10)[-1] < 0.20


def test_a_file_goes_before_a_name_and_names_that_are_neither_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert profile_files.load_profiles(tmp_path / "h200").measured, "beside a demand file that says profiles = 'h200'"
    with pytest.raises(ConfigError, match="neither a file nor profiles") as caught:
        profile_files.load_profiles(Path("h2OO"))
    assert "h200" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="cannot be read"):
        profile_files.load_profiles(Path("h200.json"))
    Path("h200").write_text('{"origin": "imported", "device": {"name": "B", "sms": 8, "memory_mib": 1}, "models": {}}')
    assert profile_files.load_profiles(Path("h200")).device.name == "B"
