"""`gemlet profile` but for the GPU: the device is a fake with a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import GemletError
from gemlet.serve.profiles import profile, vectors
from gemlet.serve.profiles.profile import Device, ModelProfile, Probe, Profiles, Vector
from gemlet.serve.profiles.surface import Surface
from gemlet.serve.profiling import document, session
from gemlet.serve.profiling.repetition import MOST, Samples
from gemlet.serve.profiling.session import Subject
from gemlet.serve.profiling.steps import Latency, Probes, Step, steps
from gemlet.serve.profiling.taking import Found, Taken, take

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE = Device(name="NVIDIA Fake", sms=132, memory_mib=1000.0, driver="1")
A, B = Subject("a", 32, same=("twin",)), Subject("b", 4)


class Broken(GemletError):
    pass


@dataclass
class FakeBench:
    rig: FakeRig
    subject: Subject
    weights_mib: float = 12.0
    activation_mib: float = 3.0

    def prepare(self, groups: int, batches: Sequence[int]) -> None:
        self.rig.now += 0.5
        self.rig.prepared.append((self.subject.name, groups, tuple(batches)))

    def once(self, groups: int, batch: int) -> float:
        ms = 1 + 4 * batch / groups
        self.rig.now += ms / 1000
        return ms

    def probe(self, groups: int, batch: int, resource: str) -> tuple[float, float]:
        if resource == self.rig.fails_at:
            raise Broken("the model does not like that")
        self.rig.now += 0.2
        return 1.25, 1.5

    def take(self, step: Step, until: float) -> Taken:
        assert until > self.rig.now
        return take(self, step, self.rig.groups)

    def close(self) -> None:
        self.rig.open -= 1


@dataclass
class FakeRig:
    groups: int = 16
    device: Device = DEVICE
    now: float = 0.0
    open: int = 0
    fails_at: str = ""
    missing: str = ""
    prepared: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def stressor(self, resource: str, until: float) -> float:
        return 2.0

    def load(self, subject: Subject, until: float) -> FakeBench:
        if subject.name == self.missing:
            raise Broken("no such file")
        self.open += 1
        return FakeBench(self, subject)


class Silent:
    def __init__(self) -> None:
        self.total = self.advanced = 0

    def begin(self, total: int) -> None:
        self.total = total

    def step(self, model: str, what: str) -> None:
        assert model
        assert what

    def done(self, count: int) -> None:
        self.advanced += count


def measure(
    rig: FakeRig, old: Profiles | None = None, budget: float = 1e6
) -> tuple[Profiles, list[session.Left], list[Profiles], Silent]:
    written: list[Profiles] = []
    reporter = Silent()
    found, left = session.run(
        rig, [A, B], old, write=written.append, clock=lambda: rig.now, budget=budget, reporter=reporter
    )
    assert rig.open == 0
    return found, left, written, reporter


def test_everything_is_measured_and_the_file_reads_back() -> None:
    found, left, written, reporter = measure(FakeRig())
    assert not left
    assert reporter.total == reporter.advanced == len(written)
    assert set(found.models) == {"a", "twin", "b"}
    assert found.models["twin"] == found.models["a"]
    model = found.models["a"]
    shares = {share for share, _, _ in model.latency}
    assert shares == {1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0}
    assert len(model.latency) == 36
    assert {b for _, b, _ in found.models["b"].latency} == {1, 2, 4}
    assert model.surface.latency(0.5, 32) == pytest.approx(1 + 4 * 32 / 8)
    assert (model.weights_mib, model.activation_mib) == (12, 3)
    assert model.sensitivity.dram == 0.25
    assert model.pressure.l2 == 1.0  # half of what a stressor does to another, but from a half and a quarter of the SMs
    assert profile.parse(profile.render(found), "x.json") == found


def test_whatever_was_written_last_is_a_valid_profile() -> None:
    _, _, written, _ = measure(FakeRig())
    for each in written:
        assert profile.check(each) is None


@pytest.mark.parametrize("budget", [6.0, 8.0, 9.0])
def test_a_budget_ends_it_early_and_the_next_run_goes_on(budget: float) -> None:
    rig = FakeRig()
    found, left, _, reporter = measure(rig, budget=budget)
    assert left
    assert all("budget" in each.why for each in left)
    assert reporter.advanced == reporter.total
    assert {"a", "b"} <= set(found.models), "each model has something to plan with"
    before = len(rig.prepared)
    again, left, _, _ = measure(rig, old=found)
    assert not left
    whole, *_ = measure(FakeRig())
    assert again.models["a"].latency == whole.models["a"].latency
    assert len(again.models["a"].probes) == len(whole.models["a"].probes)
    twice = {at for at in rig.prepared[before:] if len(at[2]) > 1} & set(rig.prepared[:before])
    assert not twice, "latencies that are there are not taken again"
    done, left, written, _ = measure(rig, old=again)
    assert done == again
    assert not written


def test_a_file_of_another_driver_is_not_continued() -> None:
    found, *_ = measure(FakeRig())
    other = FakeRig(device=Device(name="NVIDIA Fake", sms=132, memory_mib=1000.0, driver="2"))
    anew, _, written, _ = measure(other, old=found)
    assert anew.device.driver == "2"
    assert len(written) > 10


def test_a_model_that_fails_leaves_the_others_alone() -> None:
    found, left, _, _ = measure(FakeRig(missing="a"))
    assert [(each.model, each.why) for each in left] == [("a", "no such file")]
    assert set(found.models) == {"b"}
    found, left, _, _ = measure(FakeRig(fails_at="l2"))
    assert [each.model for each in left] == ["a", "b"]
    assert len(found.models["a"].latency) == 18, "what was measured before is kept"


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory\n..."), MemoryError(), SystemExit(0), RecursionError("x")]
)
@pytest.mark.parametrize("where", ["load", "prepare", "once", "probe", "close"])
def test_whatever_a_model_raises_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, where: str
) -> None:
    """Else an exit of a model's ends the command as if it had measured everything."""
    if where == "close" and isinstance(error, SystemExit):
        return  # no code of a model's runs there
    of = FakeRig if where == "load" else FakeBench
    good = getattr(of, where)

    def raises(self: FakeRig | FakeBench, *given: Subject | int) -> object:
        subject = self.subject if isinstance(self, FakeBench) else given[0]
        if where == "close":
            good(self)
        if subject is A:
            raise error
        return good(self, *given) if where != "close" else None

    monkeypatch.setattr(of, where, raises)
    found, left, _, reporter = measure(FakeRig())
    ((model, why),) = [(each.model, each.why) for each in left]
    assert model == "a"
    assert why.startswith(type(error).__name__)
    assert "\n" not in why
    assert reporter.advanced == reporter.total
    assert len(found.models["b"].latency) == 18


def test_an_interrupt_ends_it_and_closes_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeBench, "once", interrupted)
    rig = FakeRig()
    with pytest.raises(KeyboardInterrupt):
        session.run(rig, [A, B], None, write=lambda _: None, clock=lambda: rig.now, budget=1, reporter=Silent())
    assert rig.open == 0


def test_the_first_steps_of_a_model_span_the_device() -> None:
    order = steps(16, 32)
    assert [step.groups for step in order[:3] if isinstance(step, Latency)] == [16, 1, 4]
    assert sum(isinstance(step, Probes) for step in order) == 4
    small = steps(1, 1)
    assert small == [Latency(1, (1,))], "no neighbour fits beside one group"
    assert len(steps(16, 32, quick=True)) == 3


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=500))
def test_repetition_ends(values: list[float]) -> None:
    samples = Samples(seconds=1e9)
    count = 0
    while not samples.enough and count < 10 * MOST:
        samples.add(values[count % len(values)])
        count += 1
    assert samples.enough
    assert min(values) <= samples.median <= max(values)
    assert samples.variation >= 0


def test_a_steady_model_is_measured_seldom_and_a_noisy_one_often() -> None:
    steady, noisy = Samples(), Samples()
    while not steady.enough:
        steady.add(1.0)
    number = 0
    while not noisy.enough:
        noisy.add(1.0 if number % 2 else 1.5)
        number += 1
    assert len(steady.values) < 10 < len(noisy.values)
    assert steady.variation == 0
    assert noisy.variation == pytest.approx(0.2, abs=0.02)


def test_vectors_without_probes_or_a_stressor_that_disturbs_nobody_are_nothing() -> None:
    even = Surface([(0.5, 8, 2.0), (1.0, 8, 1.0)])
    assert vectors.sensitivity([]) == vectors.pressure([], {}, even) == profile.Vector()
    probe = Probe("dram", 0.5, 8, 0.98, 1.4)
    assert vectors.sensitivity([probe]).dram == 0, "faster beside a stressor is noise"
    assert vectors.pressure([probe], {"dram": 1.001}, even).dram == 0
    assert vectors.pressure([probe], {"dram": 1.2}, even).dram == 1
    assert vectors.pressure([probe], {"dram": 3.0}, even).dram == pytest.approx(0.4)  # 0.2 on a half


def test_what_any_neighbour_costs_is_the_least_beside_the_stressor_that_leaves_the_memory_alone() -> None:
    probes = [Probe("compute", 0.5, 8, 1.2, 1.0), Probe("compute", 0.5, 1, 1.05, 1.0), Probe("dram", 0.5, 8, 2.0, 1.0)]
    found = vectors.sensitivity(probes)
    assert (found.beside, found.compute, found.dram) == (0.05, 0.125, 1.0)


def test_pressure_goes_with_the_throughput_of_the_largest_batch() -> None:
    early = Surface([(0.25, 8, 2.0), (0.5, 8, 1.0), (1.0, 8, 1.0), (0.25, 1, 1.0), (0.5, 1, 0.5), (1.0, 1, 0.5)])
    probes = [Probe("dram", 0.5, 8, 1.0, 1.4), Probe("dram", 0.25, 8, 1.0, 1.2), Probe("dram", 0.5, 1, 1.0, 1.9)]
    assert vectors.pressure(probes, {"dram": 2.0}, early).dram == pytest.approx(0.4), "on a half as on the whole"


def test_vectors_follow_from_the_probes_of_a_file_whatever_it_says() -> None:
    probes = (Probe("dram", 0.5, 8, 1.5, 1.1), Probe("compute", 0.5, 8, 1.1, 1.0))
    with_probes = ModelProfile(latency=((0.5, 8, 2.0), (1.0, 8, 1.0)), probes=probes, sensitivity=Vector(dram=9.0))
    without = ModelProfile(latency=((1.0, 8, 1.0),), sensitivity=Vector(dram=9.0))
    given = Profiles(origin="measured", device=DEVICE, models={"a": with_probes, "b": without}, stressors={"dram": 2.0})
    models = vectors.derived(given).models
    assert models["a"].sensitivity == Vector(dram=0.5, compute=0.1, beside=0.1)
    assert models["a"].pressure.dram == pytest.approx(0.2)
    assert models["b"] == without


def test_an_imported_file_is_not_continued_as_measured() -> None:
    old = Profiles(origin="imported", device=DEVICE, models={})
    assert document.continued(old, DEVICE).origin == "measured"


ODD = {
    "a latency that is rounded to none": ("latencies", 1e-9, 0.1),
    "a variation beyond the limit": ("latencies", 1.0, 1e7),
    "a variation that has no square": ("latencies", 1.0, 1e308),
    "slower than any limit": ("probes", 1e9, 1.0),
    "a sum that is no number": ("probes", 1e308, 1e308),
}


@pytest.mark.parametrize(("kind", "first", "second"), ODD.values(), ids=ODD)
def test_numbers_of_one_model_leave_the_file_readable(
    monkeypatch: pytest.MonkeyPatch, kind: str, first: float, second: float
) -> None:
    """A model is code, and may send any number: what was measured of the others must not be lost."""
    honest = FakeBench.take

    def odd(self: FakeBench, step: Step, until: float) -> Taken:
        taken = honest(self, step, until)
        if self.subject.name != "a":
            return taken
        if isinstance(step, Latency) and kind == "latencies":
            return msgspec.structs.replace(
                taken, latencies=tuple(Found(each.batch, first, second) for each in taken.latencies)
            )
        if isinstance(step, Probes) and kind == "probes":
            probes = tuple(msgspec.structs.replace(each, slower=first, pressed=second) for each in taken.probes)
            return msgspec.structs.replace(taken, probes=probes)
        return taken

    monkeypatch.setattr(FakeBench, "take", odd)
    rig, written = FakeRig(), list[Profiles]()
    found, left = session.run(
        rig, [B, A, Subject("c", 4)], None,
        write=written.append, clock=lambda: rig.now, budget=600.0, reporter=Silent(),
    )  # fmt: skip
    assert [each.model for each in left] == ["a"]
    assert {"b", "c"} <= set(found.models)
    for each in (*written, found):
        assert profile.parse(profile.render(each), "profile.json") == each
