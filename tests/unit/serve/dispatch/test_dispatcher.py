"""The queues, in explicit time: what waits, what runs, what is dropped."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch import dispatcher
from gemlet.serve.dispatch.dispatcher import MARGIN_PART, Dispatcher
from gemlet.serve.dispatch.request import Request
from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.serve.dispatch.gpu_lets import Assignment, Batch


def task(model: str, rate: float = 100, batch: int = 4, slo: float = 100) -> Task:
    return Task(
        model=model, rate=rate, capacity=rate, batch=batch, latency_ms=10, worst_ms=20, slo_ms=slo, slowdown=1.0
    )


def plan_of(*gpu_lets: tuple[float, tuple[Task, ...]]) -> Plan:
    """One GPU with these gpu-lets."""
    planned = tuple(PlannedGpuLet(sm=sm, duty_ms=20, occupancy=1, tasks=tasks) for sm, tasks in gpu_lets)
    return Plan(
        policy="test", device="d", origin="modelled", gpus=(Gpu(index=0, memory_mib=0, gpu_lets=planned),), demands=()
    )


class Says:
    """Batches are expected to take what a function of their rows says, and this margin longer; nothing is learned."""

    def __init__(self, ms: Callable[[int], float], margin: float = 0.0) -> None:
        self.ms = ms
        self.margin_ms = margin
        self.observed: list[tuple[int, float]] = []
        self.relaxed = 0

    def __call__(self, place: Assignment, rows: int) -> float:
        return self.ms(rows)

    def margin(self, place: Assignment) -> float:
        return self.margin_ms

    def observe(self, place: Assignment, rows: int, ms: float) -> None:
        self.observed.append((rows, ms))

    def relax(self, place: Assignment) -> None:
        self.relaxed += 1


ten_ms = Says(lambda rows: 10.0)
linear = Says(lambda rows: 10.0 * rows)


def send(queues: Dispatcher, model: str, now: float, slo: float = 100, count: int = 1) -> list[Batch]:
    for number in range(count):
        queues.submit(Request(model, now, now + slo, number))
    return list(queues.start(now))


def payloads(batch: Batch) -> list[object]:
    return [request.payload for request in batch.requests]


def test_an_idle_gpu_let_starts_at_once() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 8)
    (batch,) = send(queues, "a", 5.0)
    assert batch.started == 5.0
    assert payloads(batch) == [0]


def test_requests_that_come_meanwhile_make_the_next_batch_in_order() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), linear, lambda _: 8)
    (first,) = send(queues, "a", 0)
    assert send(queues, "a", 1, count=3) == []
    (second,) = queues.finish(first, 10)
    assert payloads(second) == [0, 1, 2]
    assert list(queues.finish(second, 40)) == []


def test_a_batch_is_stretched_as_far_as_the_oldest_can_bear() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), linear, lambda _: 64)
    (first,) = send(queues, "a", 0)
    send(queues, "a", 0, slo=75, count=20)
    (second,) = queues.finish(first, 10)
    assert len(second.requests) == 6  # 65 ms are left: 60 fit
    assert queues.drops() == []


def test_never_beyond_the_largest_batch() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), ten_ms, lambda _: 3)
    (first,) = send(queues, "a", 0, count=9)
    assert len(first.requests) == 3
    (second,) = queues.finish(first, 10)
    assert len(second.requests) == 3


def test_a_late_request_is_dropped_so_that_the_next_are_in_time() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), linear, lambda _: 2)
    (first,) = send(queues, "a", 0)
    queues.submit(Request("a", 0, 25, "tight"))
    queues.submit(Request("a", 0, 90, "fine"))
    queues.submit(Request("a", 0, 90, "fine too"))
    (second,) = queues.finish(first, 10)  # a batch of two takes 20: done at 30, too late for the first
    assert payloads(second) == ["fine", "fine too"]
    assert [(drop.request.payload, drop.reason) for drop in queues.drops()] == [
        ("tight", "its deadline could not be met")
    ]
    assert queues.drops() == []


def test_without_dropping_late_is_better_than_never() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 4, drop=False)
    (batch,) = send(queues, "a", 0, slo=1)
    assert len(batch.requests) == 1
    assert queues.drops() == []


def test_a_model_that_nobody_serves() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 4)
    assert send(queues, "b", 0) == []
    (drop,) = queues.drops()
    assert "no gpu-let serves b" in drop.reason


def test_on_a_shared_gpu_let_the_most_urgent_model_is_next() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"), task("b"), task("c")))), ten_ms, lambda _: 4)
    (running,) = send(queues, "a", 0)
    send(queues, "a", 1, slo=500)
    send(queues, "b", 2, slo=100)
    send(queues, "c", 3, slo=50)
    order = []
    now = 10.0
    while True:
        following = list(queues.finish(running, now))
        if not following:
            break
        (running,) = following
        order.append(running.place.model)
        now += 10
    assert order == ["c", "b", "a"]


def test_a_planned_batch_is_not_larger_than_the_model_takes() -> None:
    queues = Dispatcher(plan_of((1.0, (task("m", batch=8),))), ten_ms, {"m": 3}.__getitem__)
    (first,) = send(queues, "m", 0)
    for _ in range(8):
        queues.submit(Request("m", 0, 100))
    assert [batch.rows for batch in queues.finish(first, 10)] == [3]


def test_a_shared_gpu_let_keeps_to_planned_batches() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2), task("b")))), ten_ms, lambda _: 64)
    (running,) = send(queues, "b", 0)
    send(queues, "a", 0, count=10)
    (batch,) = queues.finish(running, 10)
    assert len(batch.requests) == 2  # a longer turn would make b late


def test_free_gpu_lets_are_loaded_by_their_planned_rates() -> None:
    plan = plan_of((0.75, (task("a", rate=300),)), (0.25, (task("a", rate=100),)))
    queues = Dispatcher(plan, ten_ms, lambda _: 1)
    counts = {0: 0, 1: 0}
    for second in range(400):  # one at a time, so that both are free whenever one comes
        (batch,) = send(queues, "a", 1000.0 * second)
        counts[batch.gpu_let.number] += 1
        assert list(queues.finish(batch, 1000.0 * second + 10)) == []
    assert counts == {0: 300, 1: 100}


def test_busy_gpu_lets_leave_work_to_free_ones() -> None:
    plan = plan_of((0.9, (task("a", rate=900),)), (0.1, (task("a", rate=100),)))
    queues = Dispatcher(plan, ten_ms, lambda _: 1)
    first = send(queues, "a", 0)
    second = send(queues, "a", 0)
    assert {batch.gpu_let.number for batch in first + second} == {0, 1}


def test_a_new_plan_loses_no_request() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 4)
    (running,) = send(queues, "a", 0)
    send(queues, "a", 1, count=2)
    queues.adopt(plan_of((0.5, (task("b"),)), (0.5, (task("a"),))))
    (batch,) = queues.start(2)  # the new gpu-let need not wait for the old one
    assert payloads(batch) == [0, 1]
    assert list(queues.finish(running, 10)) == []  # the old one is gone
    assert queues.drops() == []
    queues.adopt(plan_of((1.0, (task("b"),))))
    assert send(queues, "a", 20) == []
    assert len(queues.drops()) == 1


def test_a_plan_without_a_model_refuses_its_waiting_requests() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 1)
    send(queues, "a", 0)
    send(queues, "a", 1, count=2)
    queues.adopt(plan_of((1.0, (task("b"),))))
    assert [drop.reason for drop in queues.drops()] == ["the new plan does not serve a"] * 2


@given(
    st.lists(st.tuples(st.floats(0, 50), st.sampled_from("abcx"), st.floats(0.1, 200)), max_size=60),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_every_request_comes_out_once(sent: list[tuple[float, str, float]], seed: int, drop: bool) -> None:
    chance = random.Random(seed)
    plans = [
        plan_of((0.5, (task("a", batch=3), task("b", batch=2))), (0.3, (task("a"),)), (0.2, (task("c", batch=1),))),
        plan_of((0.9, (task("a"),)), (0.1, (task("b", batch=1),))),
    ]
    queues = Dispatcher(plans[0], linear, lambda _: 5, drop=drop)
    running: list[Batch] = []
    served: list[object] = []
    dropped: list[object] = []
    now = 0.0

    def finish(batch: Batch) -> None:
        served.extend(payloads(batch))
        running.extend(queues.finish(batch, now))

    for number, (gap, model, slo) in enumerate(sent):
        now += gap
        if chance.random() < 0.1:
            queues.adopt(chance.choice(plans))
        if running and chance.random() < 0.6:
            finish(running.pop(chance.randrange(len(running))))
        queues.submit(Request(model, now, now + slo, number))
        for batch in queues.start(now):
            assert all(other.gpu_let is not batch.gpu_let for other in running)
            if drop:  # a batch that starts can still be in time
                assert now + linear(batch.place, len(batch.requests)) <= batch.requests[0].deadline + 1e-6
            running.append(batch)
        dropped += [refused.request.payload for refused in queues.drops()]
    while running:
        finish(running.pop())
    dropped += [refused.request.payload for refused in queues.abandon("the end")]
    assert sorted([*served, *dropped], key=str) == sorted(range(len(sent)), key=str)


def test_a_request_of_several_rows_stays_whole() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=4),))), ten_ms, lambda _: 4)
    (first,) = send(queues, "a", 0)
    for rows in (3, 2, 1):
        queues.submit(Request("a", 1, 101, rows, rows))
    (second,) = queues.finish(first, 10)
    assert (payloads(second), second.rows) == ([3], 3)
    (third,) = queues.finish(second, 20)
    assert (payloads(third), third.rows) == ([2, 1], 3)


def test_a_request_larger_than_the_planned_batch_goes_alone() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), ten_ms, lambda _: 8)
    queues.submit(Request("a", 0, 100, "large", 6))
    (batch,) = queues.start(0)
    assert batch.rows == 6


def test_priority_goes_before_deadline_and_deadline_before_arrival() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=1),))), ten_ms, lambda _: 1)
    (batch,) = send(queues, "a", 0)
    for name, deadline, priority in (("low", 300, 3), ("late", 900, 2), ("soon", 500, 2), ("first", 950, 1)):
        queues.submit(Request("a", 1, deadline, name, 1, priority))
    order = []
    for now in (10, 20, 30, 40):
        (batch,) = queues.finish(batch, now)
        order += payloads(batch)
    assert order == ["first", "soon", "late", "low"]


def test_a_request_past_its_deadline_is_dropped_anywhere_in_the_queue() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a"),))), ten_ms, lambda _: 4)
    send(queues, "a", 0)
    for deadline, priority in ((500, 1), (50, 2), (20, 2)):
        queues.submit(Request("a", 1, deadline, deadline, 1, priority))
    queues.expire(30)
    assert [drop.request.payload for drop in queues.drops()] == [20]
    queues.expire(60)
    (drop,) = queues.drops()
    assert (drop.request.payload, drop.late) == (50, True)


def test_looking_for_what_is_late_takes_little_time_however_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of queues that have to be looked at whole, since something of theirs is due all the time."""
    monkeypatch.setattr(dispatcher, "EXPIRE_BUDGET", 10)
    queues = Dispatcher(plan_of((1.0, (task("a"), task("b"), task("c")))), ten_ms, lambda _: 8)
    send(queues, "a", 0.0, slo=1e9)
    for model in "abc":
        for number in range(50):
            queues.submit(Request(model, 0.0, 0.0, number, may_be_late=True))
    looked, calls = 0, 60
    for now in range(1, calls + 1):
        for model in "abc":
            queues.submit(Request(model, now - 1, now - 1, "late", priority=1))
        looked += sum(queue.trusted.to_look_at(now) for queue in queues.queues.values())
        queues.expire(now)
        looked -= sum(queue.trusted.to_look_at(now) for queue in queues.queues.values())
    assert looked <= 10 * calls + 150
    dropped = Counter(drop.request.model for drop in queues.drops())
    assert min(dropped.values()) > calls / 2
    assert len(dropped) == 3
    assert sum(map(len, queues.queues.values())) == 150 + 3 * calls - dropped.total()


def test_a_request_that_may_be_late_is_late_rather_than_dropped() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), ten_ms, lambda _: 8)
    (first,) = send(queues, "a", 0)
    for number in range(5):
        queues.submit(Request("a", 1, 2, number, may_be_late=number != 3))
    queues.expire(50)
    assert [drop.request.payload for drop in queues.drops()] == [3]
    (batch,) = queues.finish(first, 60)
    assert payloads(batch) == [0, 1, 2, 4]  # more than planned: nobody's deadline stands in the way


def test_a_suspended_gpu_starts_nothing_and_loses_nothing() -> None:
    queues = Dispatcher(plan_of((0.5, (task("a"),)), (0.5, (task("b"),))), ten_ms, lambda _: 4)
    queues.suspend(0)
    assert send(queues, "a", 0) == []
    queues.resume(0)
    (batch,) = queues.start(1)
    assert payloads(batch) == [0]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(1, 3), st.floats(1, 60), st.sampled_from(["submit", "finish", "expire"])
        )
    )
)
def test_whatever_comes_every_request_leaves_once(steps: list[tuple[int, int, float, str]]) -> None:
    queues = Dispatcher(plan_of((0.5, (task("a"),)), (0.5, (task("a"), task("b")))), linear, lambda _: 6)
    running: list[Batch] = []
    sent, seen, now = 0, [], 0.0
    for rows, priority, slo, what in steps:
        now += 3
        if what == "submit":
            queues.submit(Request("ab"[rows % 2], now, now + slo, sent, rows, priority))
            sent += 1
            running += queues.start(now)
        elif what == "finish" and running:
            batch = running.pop(0)
            seen += payloads(batch)
            running += queues.finish(batch, now)
        else:
            queues.expire(now)
        seen += [drop.request.payload for drop in queues.drops()]
    while running:
        batch = running.pop(0)
        seen += payloads(batch)
        running += queues.finish(batch, now)
    seen += [drop.request.payload for drop in queues.drops() + queues.abandon("end")]
    assert sorted(seen) == list(range(sent))


def test_with_more_waiting_the_oldest_needs_a_margin() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), Says(lambda rows: 10.0, margin=5.0), lambda _: 2)
    (first,) = send(queues, "a", 0)
    for slo in (24, 24, 25, 26, 99):
        queues.submit(Request("a", 0, slo, slo))
    (second,) = queues.finish(first, 10)  # done at 20, or at 25
    assert payloads(second) == [25, 26]
    assert [drop.request.payload for drop in queues.drops()] == [24, 24]


def test_a_request_whose_place_no_other_takes_needs_no_margin() -> None:
    expect = Says(lambda rows: 10.0, margin=5.0)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), expect, lambda _: 2)
    (first,) = send(queues, "a", 0)
    for slo in (19, 20, 21):
        queues.submit(Request("a", 0, slo, slo))
    (second,) = queues.finish(first, 10)
    assert payloads(second) == [20, 21]
    assert [drop.request.payload for drop in queues.drops()] == [19]


def test_a_larger_batch_than_planned_leaves_a_margin() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), Says(lambda rows: 10.0 * rows, margin=7.0), lambda _: 64)
    (first,) = send(queues, "a", 0)
    send(queues, "a", 0, slo=75, count=20)
    (second,) = queues.finish(first, 10)
    assert len(second.requests) == 5  # 65 ms are left, 58 of them to be used


@pytest.mark.parametrize(("slo", "starts"), [(99.0, True), (73.0, False)])
def test_no_margin_is_above_a_part_of_the_time_a_request_has(slo: float, starts: bool) -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=1),))), Says(lambda rows: 10.0, margin=1e9), lambda _: 1)
    (first,) = send(queues, "a", 0)
    queues.submit(Request("a", 0, slo, "this"))
    queues.submit(Request("a", 0, 500, "other"))
    (second,) = queues.finish(first, 45)
    assert payloads(second) == ["this" if starts else "other"]


def test_only_what_ran_in_one_piece_tells_how_long_it_takes() -> None:
    expect = Says(lambda rows: 10.0)
    queues = Dispatcher(plan_of((1.0, (task("a"),))), expect, lambda _: 4)
    (first,) = send(queues, "a", 0)
    send(queues, "a", 1, count=2)
    (second,) = queues.finish(first, 12, whole=False)
    assert list(queues.finish(second, 25)) == []
    assert expect.observed == [(2, 13)]


def test_an_expectation_is_relaxed_only_where_nothing_runs_because_of_it() -> None:
    expect = Says(lambda rows: 10.0)
    queues = Dispatcher(plan_of((1.0, (task("a"),))), expect, lambda _: 4)
    (first,) = send(queues, "a", 0)
    for slo in (12, 13, 100):
        queues.submit(Request("a", 0, slo))
    (second,) = queues.finish(first, 10)  # two are dropped, and one runs
    assert (len(queues.drops()), expect.relaxed) == (2, 0)
    for slo in (12, 13):
        queues.submit(Request("a", 0, slo))
    assert list(queues.finish(second, 20)) == []
    assert (len(queues.drops()), expect.relaxed) == (2, 1)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(1, 200), st.booleans()), max_size=60),
    st.integers(1, 4),
    st.floats(0, 40),
)
def test_a_request_with_others_behind_starts_with_the_margin(
    steps: list[tuple[float, float, bool]], planned: int, margin: float
) -> None:
    expect = Says(lambda rows: 8.0 + rows, margin=margin)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=planned),))), expect, lambda _: 8)
    running: list[Batch] = []
    now = 0.0
    for gap, slo, ends in steps:
        now += gap
        queues.submit(Request("a", now, now + slo))
        batches = list(queues.finish(running.pop(), now)) if ends and running else list(queues.start(now))
        for batch in batches:
            oldest = batch.requests[0]
            left = oldest.deadline - now - expect(batch.place, batch.rows)
            assert left >= -1e-6
            if queues.queues["a"] or batch.rows > planned:
                assert left >= min(margin, MARGIN_PART * (oldest.deadline - oldest.arrived)) - 1e-6
        running += batches
