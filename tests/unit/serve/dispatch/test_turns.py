"""Clients of one model are served in turns, and each finds room in its queue, whatever others send."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch.dispatcher import Dispatcher
from gemlet.serve.dispatch.faults import Faults
from gemlet.serve.dispatch.queue import Line
from gemlet.serve.dispatch.request import Request
from tests.counting import calls
from tests.unit.serve.dispatch.test_dispatcher import Says, linear, plan_of, send, task, ten_ms
from tests.unit.serve.dispatch.test_engine import Bench, scenario

if TYPE_CHECKING:
    from gemlet.serve.dispatch.gpu_lets import Batch

DUE = 1e6  # so late that nobody is
ANY = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # whose
        st.integers(1, 3),  # rows
        st.integers(0, 2),  # priority
        st.integers(0, 5),  # deadline
    ),
    max_size=40,
)


def request(client: str, number: int = 0, *, rows: int = 1, due: float = DUE, priority: int = 0) -> Request:
    return Request("a", 0.0, due, (client, number), rows, priority, client=client)


def line_of(*requests: Request) -> Line:
    line = Line()
    for each in requests:
        line.add(each)
    return line


def clients(requests: list[Request]) -> str:
    return "".join(each.client for each in requests)


def whose(batch: Batch) -> str:
    return clients(batch.requests)


def busy(batch: int = 4, most: int = 4, faults: Faults | None = None) -> tuple[Dispatcher, Batch]:
    """Queues of a model whose gpu-let is at work until the test says otherwise."""
    queues = Dispatcher(plan_of((1.0, (task("a", batch=batch),))), ten_ms, lambda _: most, faults=faults)
    (first,) = send(queues, "a", 0.0, slo=DUE)
    return queues, first


def test_a_request_beside_another_client_s_thousands_is_in_the_next_batch() -> None:
    queues, batch = busy()
    for number in range(5000):
        queues.submit(request("x", number))
    queues.submit(request("y"))
    (batch,) = queues.finish(batch, 10.0)
    assert sorted(whose(batch)) == list("xxxy")


def test_a_client_that_sends_one_request_after_another_has_a_turn_in_each_batch() -> None:
    queues, batch = busy()
    for number in range(100):
        queues.submit(request("x", number))
    for turn in range(1, 20):
        queues.submit(request("y", turn))
        (batch,) = queues.finish(batch, 10.0 * turn)
        assert ("y", turn) in [each.payload for each in batch.requests]
        assert len(batch.requests) == 4


def test_who_sends_anew_each_time_does_not_go_before_who_has_waited() -> None:
    """Also where a client has nothing that waits between two requests, it is known that it had its turn."""
    queues, batch = busy(batch=1, most=1)
    for number in range(50):
        queues.submit(request("x", number))
    served = ""
    for turn in range(1, 41):
        queues.submit(request("y", turn))
        queues.submit(request("z", turn))
        (batch,) = queues.finish(batch, 10.0 * turn)
        served += whose(batch)
    assert min(served.count(client) for client in "xyz") >= 13


def test_turns_are_not_saved_up() -> None:
    """Neither by a client that had few until it came back, nor by one that is new."""
    line = line_of(*(request("x", number) for number in range(200)), request("y"))
    line.take(50)
    for client in "yz":
        for number in range(50):
            line.add(request(client, number))
    assert Counter(clients(line.take(30))) == {"x": 10, "y": 10, "z": 10}


def test_several_with_much_to_do_get_the_same() -> None:
    queues, batch = busy(batch=5, most=5)
    for client, count in (("x", 1000), ("y", 100), ("z", 100)):
        for number in range(count):
            queues.submit(request(client, number))
    served = ""
    for turn in range(1, 31):
        (batch,) = queues.finish(batch, 10.0 * turn)
        assert len(batch.requests) == 5
        served += whose(batch)
    assert Counter(served) == {"x": 50, "y": 50, "z": 50}


def test_turns_are_of_rows_not_of_requests() -> None:
    line = line_of(*(request("x", number, rows=4) for number in range(10)), *(request("y", n) for n in range(10)))
    served = Counter[str]()
    for _ in range(2):
        for each in line.take(line.fitting(8)):
            served[each.client] += each.rows
    assert served == {"x": 8, "y": 8}


def test_a_client_alone_gets_everything_in_the_order_of_its_deadlines() -> None:
    queues, batch = busy()
    dues = random.Random(1).sample(range(1000, 2000), 40)
    for due in dues:
        queues.submit(request("x", due, due=due))
    served = []
    for turn in range(1, 11):
        (batch,) = queues.finish(batch, float(turn))
        assert len(batch.requests) == 4
        served += [each.deadline for each in batch.requests]
    assert served == sorted(dues)


def test_where_all_that_waits_fits_into_a_batch_it_is_one_batch() -> None:
    queues, batch = busy(batch=8, most=8)
    for client in "xxxxxyyz":
        queues.submit(request(client))
    (batch,) = queues.finish(batch, 10.0)
    assert sorted(whose(batch)) == list("xxxxxyyz")


def test_clients_that_have_as_much_waiting_are_served_by_deadline() -> None:
    line = line_of(request("x", due=30.0), request("y", due=10.0), request("z", due=20.0))
    assert clients(line.take(line.fitting(2))) == "yz"


def test_turns_are_within_a_priority() -> None:
    line = line_of(*(request("x", number) for number in range(3)), request("y", priority=1), request("z"))
    assert clients(line.take(line.fitting(3))) == "xzx"
    assert clients(line.take(line.fitting(3))) == "xy"


def test_what_would_be_late_is_dropped_first_whosever_turn_it_is() -> None:
    queues = Dispatcher(plan_of((1.0, (task("a", batch=2),))), linear, lambda _: 2)
    (batch,) = send(queues, "a", 0.0, slo=DUE)
    for number in range(5):
        queues.submit(request("x", number, due=25.0))
    for number in range(5):
        queues.submit(request("x", number, due=DUE))
    queues.submit(request("y"))
    (batch,) = queues.finish(batch, 10.0)
    assert [drop.request.deadline for drop in queues.drops()] == [25.0] * 5
    assert sorted(whose(batch)) == ["x", "y"]


def test_clients_whose_requests_may_fail_a_batch_have_turns_among_each_other() -> None:
    known = Faults()
    for client in "xy":
        known.failed("a", client, 0.0)
    queues, batch = busy(faults=known)
    for number in range(100):
        queues.submit(request("x", number))
    queues.submit(request("y"))
    (batch,) = queues.finish(batch, 10.0)
    assert sorted(whose(batch)) == list("xxxy")


def run_through(load: float, clients: int) -> tuple[int, int, int]:
    """Of 4000 requests at random moments from so many clients: those in time, batches, rows of these."""
    dice, drawn = random.Random(7), random.Random(8)
    queues = Dispatcher(plan_of((1.0, (task("a", batch=8),))), Says(lambda rows: 4.0 + rows), lambda _: 16)
    arrivals, now = [], 0.0
    for number in range(4000):
        now += dice.expovariate(load * 8 / 12)
        arrivals.append(
            Request("a", now, now + dice.choice([30.0, 40.0]), number, client=str(drawn.randrange(clients)))
        )
    batch, ends, in_time, sizes = None, 0.0, 0, []
    while arrivals or batch is not None:
        if batch is not None and (not arrivals or ends <= arrivals[0].arrived):
            now = ends
            in_time += sum(each.deadline >= now for each in batch.requests)
            batch = next(queues.finish(batch, now), None)
        else:
            coming = arrivals.pop(0)
            now = coming.arrived
            queues.submit(coming)
            batch = batch or next(queues.start(now), None)
            if batch is None or batch.started != now:
                continue
        if batch is not None:
            sizes.append(batch.rows)
            ends = now + 4.0 + batch.rows
    return in_time, len(sizes), sum(sizes)


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95, 1.3, 2.0])
def test_turns_cost_clients_that_keep_to_their_part_nothing(load: float) -> None:
    alone, turns = run_through(load, 1), run_through(load, 20)
    assert turns[0] >= 0.99 * alone[0]
    assert turns[1] <= 1.01 * alone[1]
    assert load > 0.8 or turns[0] >= 3999


@given(first=ANY, then=ANY, limit=st.integers(1, 8), dice=st.randoms(use_true_random=False))
def test_a_line_loses_nothing_and_takes_what_it_says(
    first: list[tuple[str, int, int, int]], then: list[tuple[str, int, int, int]], limit: int, dice: random.Random
) -> None:
    line, waiting = Line(), dict[int, Request]()
    coming = [request(client, rows=rows, priority=priority, due=due) for client, rows, priority, due in first + then]
    while coming or waiting:
        for each in [coming.pop(0) for _ in range(min(len(coming), dice.randint(0, 6)))]:
            line.add(each)
            waiting[id(each)] = each
        assert sorted(map(id, line)) == sorted(waiting)
        assert line.rows == sum(each.rows for each in waiting.values())
        if not waiting:
            continue
        most_urgent = min((each.priority, each.deadline) for each in waiting.values())
        assert (line.head.priority, line.head.deadline) == most_urgent
        act = dice.choice(["take", "take", "pop", "pass", "remove"])
        if act == "take":
            rows, following = line.fitting(limit), line.next
            out = line.take(rows)
            assert out[0] is following
            assert sum(each.rows for each in out) == rows
            assert rows <= limit or len(out) == 1
            assert max(each.priority for each in out) <= min(
                (each.priority for key, each in waiting.items() if all(each is not other for other in out)), default=9
            )
        elif act == "pop":
            out = [line.head]
            assert line.pop() is out[0]
        elif act == "pass":
            out = [line.next]
            assert line.pass_over() is out[0]
        else:
            client = dice.choice("abc")
            out = list(line.remove(lambda each, client=client: each.client == client))
            assert [(each.priority, each.deadline) for each in out] == sorted(
                (each.priority, each.deadline) for each in out
            )
        for each in out:
            del waiting[id(each)]
    assert len(line) == line.rows == 0


@pytest.mark.parametrize("others", [1, 10_000])
def test_a_turn_costs_the_same_however_many_clients_wait(others: int) -> None:
    line = Line()
    for number in range(others):
        line.add(request(f"client {number}"))
    for number in range(1000):
        line.add(request("x", number))

    def act() -> None:
        line.add(request("y"))
        line.take(line.fitting(4))

    assert max(calls(act) for _ in range(20)) < 120  # 70 when this was written, whatever wait


def test_clients_that_have_gone_are_not_remembered() -> None:
    line = line_of(*(request("x", number) for number in range(20_000)))
    for number in range(10_000):
        line.add(request(f"client {number}"))
        line.take(2)
    assert line.known < 500
    line.take(line.rows)
    assert line.known == 0


def test_a_turn_is_remembered_until_others_had_theirs_however_many_come() -> None:
    line = line_of(request("x"), request("x"), request("y"))
    assert clients(line.take(2)) == "xy"
    for number in range(200):
        line.add(request(f"client {number}"))
    line.add(request("y", due=1.0))
    assert line.next.client == "client 0"
    line.take(200)
    assert line.next.client == "y"


@pytest.mark.parametrize("way", ["taken in turn", "dropped as late"])
def test_what_is_over_takes_no_memory(way: str) -> None:
    """Also while what is first by deadline, or whose turn is next, stays."""
    line = line_of(request("y", rows=10_000), request("x"), request("x"))
    line.take(10_001)  # so it is x's turn for long
    if way == "taken in turn":
        line.add(request("y", due=0.0))
    for number in range(5000):
        line.add(request("x" if way == "taken in turn" else "y", number, due=1.0 + number))
        if way == "taken in turn":
            line.take(1)
        else:
            line.pop()
    turns = line._turns
    assert len(line) <= 3
    assert max(len(turns._next), len(turns._due)) < 200


@scenario
async def test_a_client_finds_a_place_beside_one_that_sends_without_end() -> None:
    bench = Bench()
    bench.send(0.0)
    with mock.patch.object(bench.engine.room, "places", 30):
        for _ in range(40):
            bench.send(1.0, client="x")
        assert [answer.reason for answer in bench.answers if answer] == ["overload"] * 25
        for client in ("y", "z"):
            call = bench.send(2.0, client=client)
            assert bench.answers[-1] is None, call
    await bench.executor.answer()
    while bench.executor.runs:
        await bench.executor.answer()
    assert None not in bench.answers
    assert bench.answers[-2:] == [[4.0], [4.0]]


@scenario
async def test_a_client_finds_room_beside_one_whose_inputs_are_large() -> None:
    bench = Bench()
    bench.engine.room.most = 90
    bench.send(0.0)
    for _ in range(40):
        bench.send(1.0, client="x")  # four bytes each
    assert sum(answer is None for answer in bench.answers) == 1 + 8  # a third, as much as is left to the model
    bench.send(1.0, client="y")
    assert bench.answers[-1] is None
    while bench.executor.runs:
        await bench.executor.answer()
    assert bench.engine.room.total == 0


@scenario
async def test_many_clients_use_all_places() -> None:
    bench = Bench()
    bench.send(0.0)
    with mock.patch.object(bench.engine.room, "places", 30):
        for number in range(31):
            bench.send(1.0, client=f"client {number}")
    assert [answer.reason for answer in bench.answers if answer] == ["overload"]
    while bench.executor.runs:
        await bench.executor.answer()


@pytest.mark.parametrize("others", [0, 200])
@pytest.mark.parametrize("how", ["each more urgent", "most urgent out", "next out"])
def test_a_look_at_the_next_batch_costs_the_same_whatever_was_before(how: str, others: int) -> None:
    """What one client sends, and what is dropped, makes no look longer: all that is served waits for it."""
    line = line_of(*(request(str(number), rows=2) for number in range(others)))
    for number in range(4000):
        line.add(request("one", number, rows=2, due=DUE - 1 - number if how == "each more urgent" else number))
    for _ in range(0 if how == "each more urgent" else 2000):
        line.pop() if how == "most urgent out" else line.pass_over()
    assert calls(lambda: line.fitting(32)) < 1500  # 200 to 400 when this was written, and thousands for all that was


@pytest.mark.parametrize("due", [20.0, 24.0])
def test_what_is_dropped_at_once_costs_no_look_at_a_batch_each(due: float) -> None:
    """However large the batches are: whatever is served waits for it."""
    queues, first = busy(batch=256, most=256)
    for number in range(3000):
        queues.submit(request("one", number, rows=2, due=due + number / 1e6))
    queues.submit(request("two", rows=2, due=DUE))
    following = []
    spent = calls(lambda: following.extend(queues.finish(first, 15.0)))
    assert [each.reason for each in queues.drops()] == ["its deadline could not be met"] * 3000
    assert [whose(each) for each in following] == ["two"]
    assert spent < 300_000
