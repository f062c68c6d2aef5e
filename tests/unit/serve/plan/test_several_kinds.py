"""Plans over several kinds of device: each gpu-let by the profile of its own kind, and one kind as it always was."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import InvalidValue
from gemlet.serve.control import propose
from gemlet.serve.control.propose import Question
from gemlet.serve.control.settings import Cause, ControlSettings
from gemlet.serve.plan import several_kinds
from gemlet.serve.plan.model import Demand, Infeasible, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.plan.policies import POLICIES
from gemlet.serve.plan.verify import verify
from gemlet.serve.profiles import kinds, modelled
from tests.examples import few
from tests.unit.serve.cases import demand, scaling
from tests.unit.serve.two_kinds import two

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import ModelProfile, Profiles

FAST = modelled.h200()
MODELS = ("resnet50", "vgg16", "mobilenet_v2", "bert", "dlrm")
SMALL = {"ideal", "exhaustive"}


def slower(profiles: Profiles, name: str, times: float, **by_model: float) -> Profiles:
    """Another kind of device, on which batches take so many times as long, some models other than the rest."""

    def later(model: str, profile: ModelProfile) -> ModelProfile:
        factor = by_model.get(model, times)
        return msgspec.structs.replace(profile, latency=tuple((s, b, ms * factor) for s, b, ms in profile.latency))

    device = msgspec.structs.replace(profiles.device, name=name, memory_mib=80_000, sms=108)
    return msgspec.structs.replace(
        profiles, device=device, models={model: later(model, each) for model, each in profiles.models.items()}
    )


SLOW = slower(FAST, "slow (modelled)", 2.3)
BOTH = kinds.of_counts([(FAST, 2), (SLOW, 2)])
ALL = (FAST.device.name,) * 2 + (SLOW.device.name,) * 2
THERE = Inventory(gpus=4, kinds=ALL)

demands = st.lists(
    st.builds(
        Demand,
        model=st.sampled_from(MODELS),
        rate=st.floats(0, 30_000),
        slo_ms=st.floats(2, 100),
        variation=st.floats(0, 2),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda wanted: wanted.model,
)
some_options = st.builds(
    PlanOptions,
    grid=st.sampled_from([0, 10]),
    quantile=st.sampled_from([0.5, 0.99]),
    executor=st.sampled_from(["green", "mps"]),
    effort=st.just(300),
    hop_ms=st.sampled_from([0.0, 0.4]),
)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in SMALL])
@few(8)
@given(wanted=demands, options=some_options)
def test_no_gpu_let_is_planned_with_another_kinds_profile(
    policy: str, wanted: list[Demand], options: PlanOptions
) -> None:
    made = plan(BOTH, wanted, THERE, None, options, policy=policy)
    if isinstance(made, Infeasible):
        assert made.why
        return
    adapted = POLICIES[policy].adapt(options)
    assert verify(made, BOTH, THERE, adapted) == []
    for gpu in made.gpus:
        assert gpu.device == ALL[gpu.index]
        own = (FAST if gpu.index < 2 else SLOW).models
        for gpu_let in gpu.gpu_lets:
            for task in gpu_let.tasks:
                alone = own[task.model].surface.latency(gpu_let.sm, task.batch) + options.hop_ms
                assert task.latency_ms >= alone * 0.999  # shares are rounded; the kinds differ by a tenth and more
                assert task.worst_ms <= task.slo_ms + 1e-6


@few(8)
@given(wanted=demands, options=some_options, gpus=st.integers(1, 4))
@pytest.mark.parametrize("policy", ["nway+type", "gpulet", "timeshare"])
def test_one_kind_among_several_is_planned_as_alone(
    policy: str, wanted: list[Demand], options: PlanOptions, gpus: int
) -> None:
    alone = plan(FAST, wanted, Inventory(gpus=gpus), None, options, policy=policy)
    there = Inventory(gpus=gpus, kinds=(FAST.device.name,) * gpus)
    among = plan(BOTH, wanted, there, None, options, policy=policy)
    assert type(among) is type(alone)
    if isinstance(alone, Plan) and isinstance(among, Plan):
        assert {gpu.device for gpu in among.gpus} <= {FAST.device.name}
        unnamed = [msgspec.structs.replace(gpu, device="") for gpu in among.gpus]
        assert msgspec.json.encode(unnamed) == msgspec.json.encode(alone.gpus)


@pytest.mark.parametrize(
    ("policy", "digest"),
    [
        ("nway+type", "4394e4d3a71a4bcb"),
        ("gpulet", "81cb131b5dbabbf0"),
        ("timeshare", "a081a8bfb81912c3"),
        ("selftuning", "ccea23603e28d889"),
        ("static", "7e039598266ae330"),
        ("exclusive", "c264a7f89e150a7a"),
    ],
)
def test_a_plan_of_one_kind_is_byte_for_byte_what_it_was_before_there_were_several(policy: str, digest: str) -> None:
    wanted = [demand("resnet50", 9000, 10), demand("vgg16", 2000, 20), demand("dlrm", 5000, 5)]
    options = PlanOptions(grid=10)
    made = plan(FAST, wanted, Inventory(gpus=4), None, options, policy=policy)
    assert isinstance(made, Plan)
    wanted[0] = demand("resnet50", 9100, 10)
    again = plan(FAST, wanted, Inventory(gpus=4), made, options, policy=policy)
    assert hashlib.sha256(msgspec.json.encode([made, again])).hexdigest()[:16] == digest


EXACT = PlanOptions(quantile=0.5, grid=10)


def devices(made: Plan) -> dict[str, set[str]]:
    """The kinds that serve each model."""
    found: dict[str, set[str]] = {}
    for gpu in made.gpus:
        for gpu_let in gpu.gpu_lets:
            for task in gpu_let.tasks:
                found.setdefault(task.model, set()).add(gpu.device)
    return found


def test_each_model_goes_to_the_kind_that_is_better_for_it():
    both, there = two({"a": scaling(1.0), "b": scaling(4.0)}, {"a": scaling(2.0), "b": scaling(1.0)})
    made = plan(both, [demand("a", 900, 100), demand("b", 900, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    assert devices(made) == {"a": {"one"}, "b": {"other"}}
    assert made.device == "one and other"


def test_a_rate_that_no_kind_has_room_for_is_divided():
    both, there = two({"a": scaling(1.0)}, {"a": scaling(2.0)})
    made = plan(both, [demand("a", 1400, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    assert devices(made) == {"a": {"one", "other"}}
    assert sum(task.rate for task in made.tasks()) == pytest.approx(1400)


def test_a_model_without_a_profile_for_a_kind_stays_away_from_it_and_the_plan_says_so():
    both, there = two({"a": scaling(1.0), "b": scaling(1.0)}, {"a": scaling(1.0)})
    made = plan(both, [demand("a", 900, 100), demand("b", 900, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    assert devices(made) == {"a": {"other"}, "b": {"one"}}
    assert "not planned on other, for which there is no profile: b" in made.notes
    with pytest.raises(InvalidValue, match="no profile of model 'c'"):
        plan(both, [demand("c", 1, 100)], there, None, EXACT)


def test_what_no_kind_can_serve_is_told_by_kind():
    both, there = two({"a": scaling(60.0)}, {"b": scaling(1.0)})
    made = plan(both, [demand("a", 1, 100)], there, None, EXACT)
    assert isinstance(made, Infeasible)
    assert made.why[0].startswith("one: a: one request takes 60 ms")
    assert made.why[1] == "other: there is no profile of a"
    made = plan(both, [demand("b", 5000, 100)], there, None, EXACT)
    assert isinstance(made, Infeasible)
    assert made.why[0] == "no plan was found on 1 one and 1 other; cut to measure, the demands would cost 5.00 other"


def test_where_one_kind_is_enough_the_other_stays_free():
    both, there = two({"a": scaling(1.0), "b": scaling(4.0)}, {"a": scaling(1.1), "b": scaling(1.0)})
    made = plan(both, [demand("a", 400, 100), demand("b", 400, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    assert devices(made) == {"a": {"other"}, "b": {"other"}}


def test_a_plan_is_kept_on_the_kinds_that_it_has():
    both, there = two({"a": scaling(1.0), "b": scaling(4.0)}, {"a": scaling(2.0), "b": scaling(1.0)})
    made = plan(both, [demand("a", 900, 100), demand("b", 800, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    near = [demand("a", 890, 100), demand("b", 790, 100)]
    again = plan(both, near, there, made, EXACT)
    assert isinstance(again, Plan)
    assert again.kept
    assert again.made_for == made.demands
    assert again.demands == tuple(near)
    assert devices(again) == devices(made)
    assert verify(again, both, there, EXACT) == []


def test_what_a_device_was_planned_for_as_another_kind_is_not_kept():
    both, there = two({"a": scaling(1.0)}, {"a": scaling(2.0)})
    made = plan(both, [demand("a", 400, 100)], there, None, EXACT)
    assert isinstance(made, Plan)
    assert made.gpus[0].device == "one"
    lost = Inventory(gpus=1, kinds=("other",))  # its only device died, and the numbers moved up
    again = plan(both, [demand("a", 400, 100)], lost, made, EXACT)
    assert isinstance(again, Plan)
    assert not again.kept
    assert [gpu.device for gpu in again.gpus] == ["other"]


def test_a_controller_plans_on_what_lives_of_each_kind():
    both, there = two({"a": scaling(1.0), "b": scaling(1.0)}, {"a": scaling(2.0), "b": scaling(2.0)}, (1, 2))
    wanted = (demand("a", 450, 100), demand("b", 450, 100))
    made = plan(both, wanted, there, None, EXACT)
    assert isinstance(made, Plan)
    assert [gpu.device for gpu in made.gpus] == ["one"]
    settings = ControlSettings(planner=EXACT)
    question = Question(Cause("devices", "one died"), wanted, (1, 2), made, settings)
    proposal = propose.answer(both, question, plan)
    assert proposal.plan is not None
    assert {gpu.index: gpu.device for gpu in proposal.plan.gpus} == {1: "other", 2: "other"}
    assert verify(proposal.plan, both, there, EXACT) == []
    assert propose.least_devices(both, wanted, EXACT) == pytest.approx(0.9)


def test_shares_leave_no_kind_fuller_than_it_is():
    def kind(name: str, slots: tuple[int, ...], **costs: float) -> several_kinds.Kind:
        return several_kinds.Kind(name, slots, costs, lambda _demands, _previous: Infeasible(policy="p", why=("no",)))

    there = [kind("x", (0,), a=0.8, b=0.8, c=0.3), kind("y", (1,), a=1.6, b=0.9)]
    wanted = [demand(model, 1, 1) for model in "abc"]
    shares = several_kinds.share_out(there, wanted, {"x": 1.0, "y": 1.0})
    assert shares is None  # c can only be on x, which a then does not fit beside, and y is too slow for all of it
    shares = several_kinds.share_out(there, wanted[:2], {"x": 1.0, "y": 1.0})
    assert shares == {"x": {"a": 1.0}, "y": {"b": 1.0}}
    assert several_kinds.share_out(there, wanted[:2], {"x": 0.7, "y": 1.0}) is None
    made = several_kinds.plan(there, wanted[:2], None, "p")
    assert isinstance(made, Infeasible)
    assert "x: no" in made.why


def test_kinds_that_are_all_too_full_are_asked_once():
    """Planning again takes a controller's time: none can take what another leaves."""
    asked: list[str] = []

    def kind(name: str, slots: tuple[int, ...], **costs: float) -> several_kinds.Kind:
        def full(_demands: object, _previous: object) -> Infeasible:
            asked.append(name)
            return Infeasible(policy="p", why=("full",))

        return several_kinds.Kind(name, slots, costs, full)

    wanted = [demand(model, 1, 1) for model in "ab"]
    made = several_kinds.plan([kind("x", (0,), a=0.9, b=2.0), kind("y", (1,), a=2.0, b=0.9)], wanted, None, "p")
    assert isinstance(made, Infeasible)
    assert asked == ["x", "y"]


def test_two_profiles_of_one_kind_are_refused():
    with pytest.raises(InvalidValue, match="different kinds"):
        kinds.of_counts([(FAST, 1), (FAST, 2)])
    assert kinds.of_counts([(FAST, 3)]) is FAST
