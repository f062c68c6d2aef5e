"""Requests that are late, and what is done with those that would be."""

from __future__ import annotations

import asyncio

from gemlet.serve.dispatch import drops
from tests.unit.serve.dispatch.test_engine import Bench, scenario
from tests.unit.serve.stand_in import model


@scenario
async def test_a_deadline_that_passes_in_the_queue_is_told():
    bench = Bench()
    bench.send(1.0)
    bench.send(2.0, timeout_ms=20.0)
    bench.now = 19.0
    bench.engine.expire()
    assert bench.answers[1] is None
    bench.now = 21.0
    bench.engine.expire()
    assert bench.answers[1].reason == "deadline"
    assert "20 ms after arrival, the request waited 21 ms" in bench.answers[1].message
    await bench.executor.answer()
    assert bench.answers[0] == [2.0]


@scenario
async def test_of_many_that_are_late_at_once_some_are_refused_in_each_turn_of_the_loop():
    """Twenty thousand kept all others waiting for 0.9 s."""
    bench, many = Bench(), 3 * drops.TOLD + 1
    bench.send(1.0)
    for _ in range(many):
        bench.send(2.0, timeout_ms=20.0)
    gone = bench.engine.room.total
    assert gone
    bench.now = 21.0
    bench.engine.expire()
    told = []
    while None in bench.answers[1:]:
        told.append(bench.answers.count(None))
        bench.engine.expire()  # asks for no turn beside
        await asyncio.sleep(0)
    assert told == [many + 1 - turn * drops.TOLD for turn in (1, 2, 3)]
    assert {each.reason for each in bench.answers[1:]} == {"deadline"}
    assert bench.engine.room.total == 0
    assert bench.engine.in_flight == 1
    await bench.executor.answer()


@scenario
async def test_a_server_that_ends_refuses_what_was_to_be_refused_in_a_later_turn():
    bench = Bench()
    bench.send(1.0)
    for _ in range(3 * drops.TOLD):
        bench.send(2.0, timeout_ms=20.0)
    bench.now = 21.0
    bench.engine.expire()
    bench.engine.abandon("the server is ending")
    assert {each.reason for each in bench.answers[1:]} == {"deadline"}
    await asyncio.sleep(0)
    await bench.executor.answer()
    assert bench.engine.in_flight == 0


@scenario
async def test_what_cannot_be_in_time_is_dropped_early_and_tried_again_later():
    bench = Bench()
    for _ in range(2):  # the first batch is a warm-up, and not believed
        bench.send(1.0)
        bench.now += 150.0
        await bench.executor.answer()
    bench.send(1.0)
    assert bench.answers[-1].reason == "deadline"
    assert "its batch would take" in bench.answers[-1].message
    for _ in range(40):
        bench.send(1.0)
        if bench.executor.runs:
            break
    assert bench.executor.runs, "an estimate must not refuse for ever"


@scenario
async def test_a_throughput_model_is_late_unless_a_request_has_its_own_deadline():
    bench = Bench(model(platform="python", slo_ms=10.0, service_class="throughput"))
    bench.send(1.0)
    bench.send(2.0)
    bench.send(3.0, timeout_ms=5.0)
    bench.now = 500.0
    bench.engine.expire()
    assert bench.answers[2].reason == "deadline"
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers[:2] == [[2.0], [4.0]]


@scenario
async def test_without_drops_late_is_better_than_never():
    bench = Bench(drop=False)
    bench.send(1.0)
    bench.send(2.0, timeout_ms=20.0)
    bench.now = 500.0
    bench.engine.expire()
    await bench.executor.answer()
    await bench.executor.answer()
    assert bench.answers == [[2.0], [4.0]]
    assert bench.engine.models["echo"].statistics.late == 2


@scenario
async def test_deadlines_are_looked_at_only_while_something_waits():
    bench = Bench()
    assert bench.engine._timer is None
    bench.send(1.0)
    assert bench.engine._timer is None
    bench.send(2.0)
    assert bench.engine._timer is not None
    bench.now = 200.0
    while bench.answers[1] is None:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0.001)
    assert bench.answers[1].reason == "deadline"
    assert bench.engine._timer is None
    await bench.executor.answer()
