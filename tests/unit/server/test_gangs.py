"""Turns on two devices at the same time, for groups whose clients use them together."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

DEVICES = (b"device 0".ljust(16), b"device 1".ljust(16))


class Rank(RawClient):
    """A client that always has work, and stops when it is told to."""

    def step(self) -> None:
        state = self.state
        if state == wire.REVOKED or (state == wire.RUN and time.monotonic_ns() >= self.page.get("deadline_ns")):
            self.stop(wire.BY_REVOCATION if state == wire.REVOKED else wire.DEADLINE, wants=True)

    def turn(self) -> int | None:
        """When its turn ends, if it has one."""
        return self.page.get("deadline_ns") if self.state == wire.RUN else None


def ranks_of(path: str, group: str, *, tied: bool) -> list[Rank]:
    ranks = [Rank(path, group).attach(uuid) for uuid in DEVICES]
    for rank in ranks:
        rank.page.put("tied", int(tied), size=4)
    return ranks


def stop_and_be_heard(rank: Rank, tail_ns: int = 0) -> None:
    """It may have its next turn as soon as it is heard."""
    before = rank.epoch
    rank.stop(wire.DEADLINE, tail_ns=tail_ns, wants=True)
    wire.eventually(lambda: rank.state == wire.BLOCKED or rank.epoch != before)


def start_crosswise(a: list[Rank], b: list[Rank]) -> None:
    """Each device begins with another job."""
    for rank in (a[0], b[1]):
        rank.send(wire.REQUEST)
        rank.await_state(wire.RUN)
    for rank in (a[1], b[0]):
        rank.send(wire.REQUEST)


def run_until(ranks: list[Rank], holds: Callable[[], object]) -> None:
    def happened() -> object:
        for rank in ranks:
            rank.step()
        return holds()

    wire.eventually(happened)


def run_together(ranks: list[Rank]) -> bool:
    first, second = (rank.turn() for rank in ranks)
    return first == second and first not in {None, wire.NEVER}


def test_ranks_of_two_jobs_have_their_turns_at_the_same_time(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    start_crosswise(a, b)
    for _ in range(3):
        for job in (a, b):
            run_until([*a, *b], lambda job=job: run_together(job))  # type: ignore[misc]
    # Not at every moment: between two slots the one that had its turn is told to stop.
    reason = "waits for its turn on all its devices at the same time"
    run_until([*a, *b], lambda: any(group["reason"] == reason for group in s.groups().values()))


@pytest.mark.parametrize("gang", ["off", "auto"])
def test_groups_that_use_no_devices_together_have_their_turns_on_each_for_itself(
    serve: Callable[..., Served], gang: str
) -> None:
    s = serve()
    for name in "ab":
        s.server.set_group(name, gang=gang)
    a, b = (ranks_of(s.path, name, tied=gang == "off") for name in "ab")
    start_crosswise(a, b)
    turns = []
    for rank in (b[0], a[0], b[0]):
        run_until([*a, *b], lambda rank=rank: rank.turn() is not None)  # type: ignore[misc]
        turns.append(rank.turn())
    assert all(earlier < later for earlier, later in pairwise(turns) if wire.NEVER not in {earlier, later})
    assert all(not group["reason"].startswith("waits for its turn on all") for group in s.groups().values())


def test_a_job_said_to_be_a_gang_is_one(serve: Callable[..., Served]) -> None:
    s = serve()
    for name in "ab":
        s.server.set_group(name, gang="on")
    a, b = (ranks_of(s.path, name, tied=False) for name in "ab")
    for rank in (a[0], b[1], a[1], b[0]):
        rank.send(wire.REQUEST)
    for job in (a, b, a):
        run_until([*a, *b], lambda job=job: run_together(job))  # type: ignore[misc]


@pytest.mark.parametrize("how", ["leaves", "stops answering"])
def test_a_rank_that_is_gone_stalls_its_own_job_alone(serve: Callable[..., Served], how: str) -> None:
    s = serve()
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    start_crosswise(a, b)
    run_until([*a, *b], lambda: run_together(a))
    if how == "leaves":
        a[1].close()
    for _ in range(3):
        run_until([a[0], *b], lambda: run_together(b))
        run_until([a[0], *b], lambda: not run_together(b))


def test_one_drain_speaks_for_all_stops_before_it(serve: Callable[..., Served]) -> None:
    """A rank that was granted a turn and told to stop at once reports one drain for both of its stops."""
    s = serve(finish=600_000_000_000)  # ns of patience at the end of a slot
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    start_crosswise(a, b)
    run_until([*a, *b], lambda: run_together(a))
    a[0].stop(wire.IDLE, tail_ns=1_000_000)
    a[0].send(wire.REQUEST)
    run_until([*a, *b], lambda: run_together(b))


def stop_one_rank(a: list[Rank], b: list[Rank], submitted: tuple[int, int], counted_late: int = 0) -> Rank:
    """A kernel of ``a``'s first rank waits on its device for the other one, which is returned."""
    start_crosswise(a, b)
    run_until([*a, *b], lambda: run_together(a))
    late, peer = a
    for rank, launches in zip(a, submitted, strict=True):
        rank.page.put("launches", launches)
        rank.page.put("work_ns", 1_000_000)
    stop_and_be_heard(late, tail_ns=1_000_000)
    if counted_late:
        late.page.put("launches", counted_late)
    stop_and_be_heard(peer)
    return peer


def test_what_was_submitted_as_a_turn_ended_is_what_a_peer_submits_too(serve: Callable[..., Served]) -> None:
    """The driver may take long for a launch, and who counts may be late: both follow the end of the turn."""
    s = serve(finish=600_000_000_000)
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    peer = stop_one_rank(a, b, (90, 100), counted_late=103)
    run_until(b, lambda: peer.state == wire.RUN and peer.page.get("submissions", size=4) == 3)


@pytest.mark.parametrize("beside", [0, 1], ids=["each on its device", "each on both devices"])
def test_a_rank_goes_on_for_its_peer_though_it_has_submitted_more(serve: Callable[..., Served], beside: int) -> None:
    """When all were at rest, and counts began, the host of one was further than that of the other.

    Processes of a job often open all devices of it: what does nothing on one is no rank there that could go on.
    """
    s = serve(finish=600_000_000_000)
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    _idle = [rank for _ in range(beside) for rank in ranks_of(s.path, "a", tied=True)]
    peer = stop_one_rank(a, b, (90, 100))
    run_until(b, lambda: peer.state == wire.RUN)


def test_a_rank_that_catches_up_by_an_unknown_number_at_most_doubles_it(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = (ranks_of(s.path, name, tied=True) for name in "ab")
    peer = stop_one_rank(a, b, (90, 100))
    submitted, allowed = 100, 0
    while allowed < 4:
        # Its other turns, which are those of its slots, end as they do for all.
        run_until([*b, peer], lambda: peer.state == wire.RUN and peer.page.get("submissions", size=4) > 0)
        allowed = peer.page.get("submissions", size=4)
        assert allowed <= max(1, submitted - 100)
        submitted += allowed
        for rank in a:
            rank.page.put("work_ns", 1_000_000 * submitted)
        peer.page.put("launches", submitted)
        stop_and_be_heard(peer)
