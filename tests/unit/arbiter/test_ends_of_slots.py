"""Slots of gangs that end while one rank has submitted more than its peer, which then waits on the device for it."""

from __future__ import annotations

from typing import Literal

import pytest

from gemlet import _native as native

Reason = Literal["deadline", "idle", "revoked"]
US, MS = 1_000, 1_000_000
STEP = 1.9  # ms that a step takes once all ranks have submitted it


class Device:
    def __init__(self) -> None:
        self.arbiter = native.Arbiter("fair", open=False)
        self.deadlines: dict[int, float] = {}  # of the clients that run, in ms
        self.submissions: dict[int, int] = {}  # after which their turns end; 0: for no such reason

    def act(self) -> None:
        for kind, client, deadline, *_, submissions, _shared, _raise in self.arbiter.take_actions():
            if kind in {"grant", "update", "revoke"}:
                self.deadlines[client] = deadline / MS
                self.submissions[client] = submissions


class Pair:
    """Jobs 1 and 2, each with a rank of that number on both devices; times are milliseconds. launched: what the ranks
    have submitted to each device before their first turn."""

    def __init__(self, *launched: int) -> None:
        self.now = 0
        self.gangs = native.Gangs()
        self.devices = [Device(), Device()]
        for device in self.devices:
            self.gangs.add(device.arbiter)
            for number, least in ((1, 0.75), (2, 0.25)):
                group = device.arbiter.set_group(f"job{number}", 0, min=least)
                device.arbiter.add_client(number, group, 0)
        for number in (1, 2):
            self.gangs.tie(f"job{number}")
            self.launched(number, *launched or (0, 0))
        self.settle()
        for number in (1, 2):
            for device in self.devices:
                device.arbiter.request(number, 0)
        self.settle()

    def launched(self, client: int, *counts: int) -> None:
        for device, count in zip(self.devices, counts, strict=True):
            device.arbiter.progress(client, 0, count)

    def settle(self) -> None:
        self.gangs.settle(self.now)
        for device in self.devices:
            device.act()

    def until(self, end: float, *, client: int | None = None, device: int = 0) -> float:
        """Until that time, or until the client runs on the device."""
        last = round(end * MS)
        while self.now < last and (client is None or client not in self.devices[device].deadlines):
            events = [self.gangs.next_event(), *(d.arbiter.next_event() for d in self.devices)]
            self.now = min(max(min(events), self.now + US), last)
            for each in self.devices:
                each.arbiter.tick(self.now)
            self.settle()
        return self.now / MS

    def stop(self, device: int, client: int, tail: float, *, drained: bool, reason: Reason = "deadline") -> None:
        arbiter = self.devices[device].arbiter
        del self.devices[device].deadlines[client]
        arbiter.stopped(client, reason, round(tail * MS), self.now)
        if drained:
            arbiter.drained(client, self.now, self.now)
        self.settle()

    def request(self, device: int, client: int) -> None:
        self.devices[device].arbiter.request(client, self.now)
        self.settle()

    def drained(self, device: int, client: int, *, earlier: bool = False) -> None:
        self.devices[device].arbiter.drained(client, self.now, self.now, earlier=earlier)
        self.settle()


def end_of_a_slot() -> tuple[Pair, int, int]:
    """The job whose slot it is, and the other."""
    pair = Pair()
    first, second = (1, 2) if 1 in pair.devices[0].deadlines else (2, 1)
    pair.until(pair.devices[0].deadlines[first])
    return pair, first, second


@pytest.mark.parametrize("tail", [STEP, 40.0], ids=["estimate", "estimate of a step that had waited"])
def test_a_rank_goes_on_for_its_peer_which_does_not_go_on_when_it_is_done(tail: float) -> None:
    """Before, one that had just drained was let go on before its peer was heard, and was then a step ahead again."""
    pair, first, second = end_of_a_slot()
    end = pair.now / MS
    pair.stop(0, first, tail, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    pair.request(0, first)
    pair.request(1, first)
    went_on = pair.until(end + 20, client=first, device=1)
    assert went_on < end + 3.0
    assert second not in pair.devices[0].deadlines
    assert second not in pair.devices[1].deadlines
    pair.until(went_on + STEP)
    pair.stop(1, first, 0.0, drained=True)
    pair.drained(0, first)
    assert second in pair.devices[0].deadlines
    assert second in pair.devices[1].deadlines


def test_a_rank_that_never_drains_keeps_the_others_no_longer_than_their_patience() -> None:
    pair, first, second = end_of_a_slot()
    end = pair.now / MS
    pair.stop(0, first, STEP, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    for device in (0, 1):
        assert pair.until(end + 30, client=second, device=device) == pytest.approx(end + 10, abs=0.1)


def test_a_rank_that_goes_on_is_not_let_go_on_again_before_what_it_submitted_is_complete() -> None:
    """Before, the news that it stopped let it run once more: until its peer was heard nobody knew that it drains."""
    pair, first, _ = end_of_a_slot()
    pair.stop(0, first, STEP, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    for device in (0, 1):
        pair.request(device, first)
    pair.until(pair.now / MS + 20, client=first, device=1)
    arbiter = pair.devices[1].arbiter
    arbiter.stopped(first, "deadline", round(STEP * MS), pair.now)
    arbiter.request(first, pair.now)
    assert not [kind for kind, client, *_ in arbiter.take_actions() if kind == "grant" and client == first]


@pytest.mark.parametrize("earlier", [False, True])
def test_one_drain_speaks_for_all_stops_before_it(earlier: bool) -> None:
    """A client that runs for a moment between two stops reports one. Before, the other was open for good, and each
    slot of its job ended with the patience for those that never drain."""
    pair = Pair()
    first, second = (1, 2) if 1 in pair.devices[0].deadlines else (2, 1)
    pair.stop(0, first, STEP, drained=False, reason="idle")
    pair.request(0, first)
    assert first in pair.devices[0].deadlines
    pair.until(pair.devices[0].deadlines[first])
    pair.stop(1, first, 0.0, drained=True)
    pair.stop(0, first, 0.1, drained=False)
    pair.drained(0, first, earlier=earlier)
    assert (second not in pair.devices[0].deadlines) is earlier


def test_a_slot_ends_for_all_ranks_when_it_ends_for_the_first() -> None:
    """Before, a rank that thought its next step short enough began it, and its peer had to go on for it."""
    pair = Pair()
    first, second = (1, 2) if 1 in pair.devices[0].deadlines else (2, 1)
    end = pair.devices[1].deadlines[first]
    pair.until(end - STEP / 2)
    pair.stop(0, first, 0.4, drained=False)
    assert pair.devices[1].deadlines[first] == pair.now / MS
    pair.stop(1, first, 0.4, drained=False, reason="revoked")
    for device in (0, 1):
        pair.request(device, first)
        pair.drained(device, first)
    assert second in pair.devices[0].deadlines
    assert second in pair.devices[1].deadlines


def test_the_time_that_a_slot_does_not_use_is_the_next_jobs() -> None:
    """Before, the slot began anew without the rank that had left it, and all devices were idle until it was over."""
    pair = Pair()
    first, second = (1, 2) if 1 in pair.devices[0].deadlines else (2, 1)
    pair.until(5)
    assert pair.devices[0].deadlines[first] > 20
    pair.stop(0, first, 0.4, drained=False)
    pair.stop(1, first, 0.4, drained=False, reason="revoked")
    for device in (0, 1):
        pair.request(device, first)
        pair.drained(device, first)
    for device in (0, 1):
        assert pair.devices[device].deadlines[second] > 20
    end = min(device.deadlines[second] for device in pair.devices)
    pair.until(end)
    for device in (0, 1):
        pair.stop(device, second, 0.1, drained=True)
    for device in (0, 1):
        assert first in pair.devices[device].deadlines


def test_a_rank_that_stopped_when_no_slot_was_to_end_has_its_later_slots() -> None:
    """It had seen an end that was lifted meanwhile. Before, it had left all slots to come, and its peer waited for it
    on the device in each of them."""
    pair = Pair()
    first, second = (1, 2) if 1 in pair.devices[0].deadlines else (2, 1)
    pair.until(5)
    for each in pair.devices:
        each.arbiter.remove_client(second, pair.now)
    pair.settle()
    assert pair.devices[1].deadlines[first] == native.NEVER / MS
    pair.stop(1, first, 0.0, drained=True)
    for each in pair.devices:
        each.arbiter.add_client(second, each.arbiter.set_group(f"job{second}", pair.now), pair.now)
        each.arbiter.request(second, pair.now)
    pair.request(1, first)
    ran = 0
    for _ in range(400):
        for number, device in enumerate(pair.devices):
            for client in [client for client, end in device.deadlines.items() if end <= pair.now / MS]:
                pair.stop(number, client, 0.0, drained=True)
                pair.request(number, client)
        pair.until(pair.now / MS + 1)
        ran += all(each.deadlines.get(first, 0.0) > pair.now / MS for each in pair.devices)
    assert ran > 150


def apart(*counts: int) -> tuple[Pair, int]:
    """At the end of its slot a job's ranks have submitted so much, 500 and 620 of which they had done when they last
    were at rest; the first waits on its device, the second has nothing in flight."""
    pair = Pair(500, 620)
    first = 1 if 1 in pair.devices[0].deadlines else 2
    pair.until(pair.devices[0].deadlines[first])
    pair.launched(first, *counts)
    pair.stop(0, first, STEP, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    pair.request(0, first)
    pair.request(1, first)
    pair.until(pair.now / MS + 9, client=first, device=1)
    return pair, first


def test_a_rank_goes_on_for_what_its_peer_has_submitted_more() -> None:
    """Before, it went on until its peer was heard to be done, and was a kernel or two ahead by then, for which its
    peer had to go on in turn: jobs of short kernels lost 10 ms at each end of a slot."""
    pair, first = apart(517, 634)
    assert first in pair.devices[1].deadlines
    assert pair.devices[1].submissions[first] == 3


def test_where_ranks_submit_unlike_numbers_the_one_at_rest_goes_on_all_the_same() -> None:
    pair, first = apart(510, 690)
    assert first in pair.devices[1].deadlines
    assert pair.devices[1].submissions[first] == 0


def test_a_rank_waits_for_what_its_peer_may_still_complete_before_it_goes_on_again() -> None:
    pair, first = apart(517, 634)
    pair.launched(first, 517, 637)
    pair.stop(1, first, 0.1, drained=False)
    pair.request(1, first)
    pair.drained(1, first)
    assert first not in pair.devices[1].deadlines
    pair.drained(0, first)
    assert all(first not in device.deadlines for device in pair.devices)


def test_a_rank_that_comes_after_the_patience_catches_up_beside_those_whose_slot_it_is() -> None:
    """Before, what its peer had left on the device took slices from others until its own next slot."""
    pair, first, second = end_of_a_slot()
    pair.launched(first, 17, 11)
    pair.stop(0, first, STEP, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    pair.request(0, first)
    for device in (0, 1):
        pair.until(pair.now / MS + 30, client=second, device=device)
    until = [dict(device.deadlines) for device in pair.devices]
    pair.request(1, first)
    assert pair.devices[1].submissions[first] == 6
    assert first not in pair.devices[0].deadlines
    assert [device.deadlines[second] for device in pair.devices] == [each[second] for each in until]
    pair.launched(first, 17, 17)
    pair.stop(1, first, 0.1, drained=False)
    pair.drained(1, first)
    pair.drained(0, first)
    pair.request(1, first)
    assert first not in pair.devices[1].deadlines
    assert [device.deadlines[second] for device in pair.devices] == [each[second] for each in until]


def test_no_slot_waits_for_a_host_that_is_late() -> None:
    """Before, all devices of the job were idle for as long as the patience."""
    pair, first, second = end_of_a_slot()
    end = pair.now / MS
    pair.launched(first, 17, 11)
    pair.stop(0, first, STEP, drained=False)
    pair.stop(1, first, 0.0, drained=True)
    for device in (0, 1):
        assert pair.until(end + 30, client=second, device=device) < end + STEP + 0.5


def test_what_a_job_does_in_the_slots_of_others_it_pays_for() -> None:
    """One that always says that its peer waits would have more than its share."""
    pair = Pair()
    honest, liar = 1, 2
    ran = beside = 0
    seconds = 4
    for number in range(seconds * 1000):
        pair.launched(liar, number << 20, 0)  # the second is behind, always
        for device in (0, 1):
            for client in (honest, liar):
                running = pair.devices[device].deadlines
                if client in running and pair.now / MS >= running[client]:
                    # The liar's first rank never says that it is done.
                    pair.stop(device, client, 0.0, drained=(device, client) != (0, liar))
                if client not in running:
                    pair.request(device, client)
        running = pair.devices[1].deadlines
        ran += liar in running
        beside += liar in running and honest in running
        pair.until(pair.now / MS + 1)
    assert beside > 10
    assert ran / seconds / 1000 == pytest.approx(0.25, abs=0.05)


def test_work_that_clients_claim_without_bound_is_added_up() -> None:
    """Two such claims were more than a time can be: undefined, and under `make sanitize` the end of the daemon."""
    pair, first, second = end_of_a_slot()
    for device in pair.devices:
        for client in (first, second):
            device.arbiter.progress(client, native.NEVER, 2**64 - 1)
        for client in (8, 9):  # beside them, one of which leaves
            device.arbiter.add_client(client, device.arbiter.set_group("others", pair.now), pair.now)
            device.arbiter.progress(client, native.NEVER)
        device.arbiter.remove_client(9, pair.now)
    for device in (0, 1):
        pair.stop(device, first, 0.0, drained=True)
        pair.request(device, first)
    assert all(second in device.deadlines for device in pair.devices)
