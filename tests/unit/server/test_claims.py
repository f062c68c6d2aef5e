"""Nothing that a client can write makes the memory of others leave the device for long."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gemlet.daemon.accounting import Accounting
from gemlet.daemon.native import read_snapshot
from tests.unit.daemon.fakes import FakeInventory
from tests.unit.server import wire
from tests.unit.server.conftest import native
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

GIB = 1 << 30
DEVICE = bytes(16)
GRACE = 50_000_000


class Scene:
    """A device of 8 GiB, a client with 6 GiB that can move, and a liar. Both are this process to the kernel."""

    def __init__(self, serve: Callable[..., Served]) -> None:
        self.served = serve(claim_grace=GRACE, max_wait=100_000_000)
        self.served.server.add_device(DEVICE, 0)
        self.served.server.set_capacity(DEVICE, 8 * GIB)
        self.victim, self.liar = RawClient(self.served.path, "victim").attach(), RawClient(self.served.path, "liar")
        self.victim.residency.put("movable", 6 * GIB)
        self.victim.ledger.put("slots", 6 * GIB, index=self.victim.slot)
        self.victim.send(wire.ADMIT, value=6 * GIB)
        wire.eventually(self.is_in)
        self.victim.residency.put("mapped", 6 * GIB)
        self.obey(self.victim)
        self.liar.attach()

    def obey(self, client: RawClient) -> None:
        client.residency.put("seen", client.residency.get("order", size=4), size=4)
        client.send(wire.MOVED)

    def is_in(self) -> bool:
        return self.victim.residency.get("allowed") == 6 * GIB

    def confirm(self, liars: int) -> None:
        """The driver says what the process has: the victim's memory, and so much of the liar's."""
        self.served.server.set_memory_of_processes(DEVICE, [(os.getpid(), 6 * GIB + liars, (0, 0, 0))])
        time.sleep(0.001)


@pytest.fixture
def scene(serve: Callable[..., Served]) -> Scene:
    return Scene(serve)


def test_what_the_driver_does_not_have_counts_for_a_moment_only(scene: Scene) -> None:
    scene.liar.ledger.put("slots", 7 * GIB, index=scene.liar.slot)
    scene.liar.send(wire.MOVED)
    wire.eventually(lambda: not scene.is_in())  # it may be about to allocate that
    wire.eventually(lambda: (scene.confirm(0), scene.is_in())[1])
    # Nor does it help to say so again.
    scene.liar.send(wire.MOVED)
    scene.liar.ledger.put("slots", 7 * GIB - 1, index=scene.liar.slot)
    scene.liar.send(wire.MOVED)
    scene.confirm(0)
    assert scene.is_in()


def test_what_the_driver_has_counts(scene: Scene) -> None:
    scene.liar.ledger.put("slots", 7 * GIB, index=scene.liar.slot)
    scene.liar.send(wire.MOVED)
    wire.eventually(lambda: not scene.is_in())
    end = time.monotonic_ns() + 5 * GRACE
    while time.monotonic_ns() < end:
        scene.confirm(7 * GIB)
        assert not scene.is_in()


def test_memory_that_it_does_not_own_up_to_counts(scene: Scene) -> None:
    """Else others' memory would be sent to where there is no room."""
    wire.eventually(lambda: (scene.confirm(7 * GIB), not scene.is_in())[1])
    wire.eventually(lambda: (scene.confirm(0), scene.is_in())[1])


@pytest.mark.parametrize("word", ["mapped", "movable"])
def test_no_word_in_its_page_takes_room(scene: Scene, word: str) -> None:
    scene.liar.residency.put(word, 1 << 60)
    scene.liar.send(wire.MOVED)
    late = RawClient(scene.served.path, "late").attach()
    late.residency.put("movable", GIB)
    late.ledger.put("slots", GIB, index=late.slot)
    late.send(wire.ADMIT, value=GIB)
    wire.eventually(lambda: late.residency.get("allowed") == GIB)
    assert scene.is_in()


def comes_late(scene: Scene) -> RawClient:
    late = RawClient(scene.served.path, "late").attach()
    late.residency.put("movable", GIB)
    late.ledger.put("slots", GIB, index=late.slot)
    late.send(wire.ADMIT, value=GIB, epoch=1)
    wire.eventually(lambda: late.residency.get("answered", size=4) == 1)
    assert late.residency.get("admission", size=4) == wire.GRANTED
    return late


def adopt(liar: RawClient, ledgered: int) -> None:
    liar.ledger.put("slots", ledgered, index=liar.slot)
    for word in ("movable", "mapped"):
        liar.residency.put(word, 1 << 60)
    liar.send(wire.ADMIT, value=1 << 60, flags=wire.ADOPT, epoch=1)
    wire.eventually(lambda: liar.residency.get("answered", size=4) == 1)


def test_what_it_says_that_it_had_before_this_daemon_is_bounded_by_its_ledger(scene: Scene) -> None:
    adopt(scene.liar, ledgered=0)
    late = comes_late(scene)
    wire.eventually(lambda: late.residency.get("allowed") == GIB)
    assert scene.is_in()


@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_what_it_says_that_it_had_and_the_driver_has_not_counts_for_a_moment_only(
    scene: Scene, obeys: bool, stays: bool
) -> None:
    adopt(scene.liar, ledgered=1 << 60)
    late = comes_late(scene)
    assert late.residency.get("allowed") == 0  # it may be there
    if obeys:
        scene.obey(scene.liar)
    if not stays:
        scene.liar.close()
    wire.eventually(lambda: (scene.confirm(0), late.residency.get("allowed") == GIB)[1])
    assert scene.is_in()


def gone(scene: Scene) -> tuple[RawClient, Callable[[int], None]]:
    """A liar that is a process of its own, and leaves without ending once it was believed; and the driver's word."""
    liar = RawClient(scene.served.path, "liar", own_process=True).attach()
    liar.ledger.put("slots", 7 * GIB, index=liar.slot)
    liar.send(wire.MOVED)
    wire.eventually(lambda: not scene.is_in())
    assert liar.process is not None
    pid = liar.process.pid
    liar.close()
    wire.eventually(lambda: scene.served.groups()["liar"]["awaited"])

    def confirm(held: int) -> None:
        bytes_ = held or None  # the driver lists no process that holds nothing
        scene.served.server.set_memory_of_processes(DEVICE, [(pid, bytes_, (7 * GIB, 0, 0))])
        time.sleep(0.001)

    return liar, confirm


def test_nor_does_it_count_for_longer_once_the_client_has_left(scene: Scene) -> None:
    _, confirm = gone(scene)
    wire.eventually(lambda: (confirm(0), scene.is_in())[1])


def test_what_the_driver_has_of_one_that_has_left_counts(scene: Scene) -> None:
    liar, confirm = gone(scene)
    end = time.monotonic_ns() + 5 * GRACE
    while time.monotonic_ns() < end:
        confirm(7 * GIB)
        assert not scene.is_in()
    wire.eventually(lambda: (confirm(0), scene.is_in())[1])
    wire.eventually(lambda: (confirm(7 * GIB), not scene.is_in())[1])
    liar.end()
    wire.eventually(scene.is_in)


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_what_it_wrote_before_a_restart_takes_no_room_while_it_does_not_come(scene: Scene, how: str) -> None:
    liar = RawClient(scene.served.path, "liar", own_process=True).attach()
    for word in ("movable", "mapped"):
        liar.residency.put(word, 1 << 60)
    liar.send(wire.MOVED)
    wire.eventually(lambda: scene.served.server.snapshot()["devices"])
    server = native.Server(open=False, claim_grace=GRACE, host_memory=64 * GIB)
    try:
        server.add_device(DEVICE, 0)
        server.set_capacity(DEVICE, 8 * GIB)
        if how == "upgraded":
            for ledger in scene.served.server.hand_over()["ledgers"]:
                server.inherit_ledger(ledger)
            scene.served.server.leave()
        else:
            for ledger in scene.served.server.members():
                slots = [slot | {"fd": os.pidfd_open(slot["pid"])} for slot in ledger["slots"]]
                server.inherit_ledger(ledger | {"fd": -1, "slots": [s | {"before": s["index"]} for s in slots]})
                for slot in slots:
                    os.close(slot["fd"])
            scene.served.server.stop()
        server.listen(scene.served.path)
        server.start()
        scene.served.server = server
        late = comes_late(scene)
        wire.eventually(lambda: late.residency.get("allowed") == GIB)
    finally:
        wire.end_all()
        server.stop()


def test_no_word_in_its_page_stops_the_accounting_of_others(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.add_device(DEVICE, 0)
    s.server.set_capacity(DEVICE, 8 * GIB)
    liar = RawClient(s.path, "liar").attach()
    for word in ("moved_out", "moved_in", "dropped"):
        liar.residency.put(word, 2**64 - 1)
    other = RawClient(s.path, "other", own_process=True).attach()
    other.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: s.groups()["other"]["clients"][0]["contexts"])  # type: ignore[index]
    found = read_snapshot(s.server, listed=True)
    assert other.process is not None
    held: dict[int, int | None] = {os.getpid(): GIB, other.process.pid: 2 * GIB}
    Accounting(s.server, FakeInventory()).book(found, found, {DEVICE: held})
    assert [s.groups()[name]["memory_used"] for name in ("liar", "other")] == [GIB, 2 * GIB]


# --- room that others left for a client which does not fill it ------------------------------------------------------


class Turns:
    """The victim works, and a liar has just been given the place of its memory, of which it fills nothing."""

    def __init__(self, scene: Scene, liar: RawClient) -> None:
        self.scene, self.liar = scene, liar
        scene.victim.send(wire.REQUEST)
        liar.residency.put("away", 1, size=4)
        admits(liar, 6 * GIB, 1)
        liar.send(wire.REQUEST)
        wire.eventually(lambda: (self.goes_on(obeys=True), liar.residency.get("allowed") == 6 * GIB)[1])

    def goes_on(self, *, obeys: bool) -> bool:
        """Whether the victim has its memory, with which it does as it is told."""
        victim = self.scene.victim
        allowed = victim.residency.get("allowed")
        victim.residency.put("mapped", allowed)
        victim.residency.put("away", int(allowed < 6 * GIB), size=4)
        self.scene.obey(victim)
        if obeys:
            self.scene.obey(self.liar)
        process = self.liar.process
        held: list[tuple[int, int | None, tuple[int, int, int] | None]] = [(os.getpid(), allowed, None)]
        if process is not None:
            held.append((process.pid, None, (0, 0, 0)))  # the driver lists no process that holds nothing
        self.scene.served.server.set_memory_of_processes(DEVICE, held)
        time.sleep(0.001)
        return allowed == 6 * GIB


@pytest.mark.parametrize("obeys", [True, False])
def test_room_that_is_not_filled_is_given_back(scene: Scene, obeys: bool) -> None:
    turns = Turns(scene, scene.liar)
    assert not scene.is_in()
    wire.eventually(lambda: turns.goes_on(obeys=obeys))


def test_room_that_is_not_filled_is_nobodys_when_the_client_has_left(scene: Scene) -> None:
    liar = RawClient(scene.served.path, "another", own_process=True).attach()
    turns = Turns(scene, liar)
    liar.close()
    wire.eventually(lambda: scene.served.groups()["another"]["awaited"])
    wire.eventually(lambda: turns.goes_on(obeys=False))


# --- a group with a limit ------------------------------------------------------------------------------------------


def claims(liar: RawClient, fixed: int, number: int) -> None:
    """Returns when the server has seen it."""
    liar.ledger.put("slots", fixed, index=liar.slot)
    admits(liar, 0, number)


def admits(client: RawClient, movable: int, number: int) -> int:
    client.send(wire.ADMIT, value=movable, epoch=number)
    wire.eventually(lambda: client.residency.get("answered", size=4) == number)
    return client.residency.get("admission", size=4)


def test_claims_that_come_and_go_are_within_the_limit_of_their_group(scene: Scene) -> None:
    scene.served.server.set_group("liar", memory=GIB)
    scene.confirm(0)
    liars = [scene.liar, RawClient(scene.served.path, "liar").attach()]
    for number in range(1, 6):
        for liar in liars:
            claims(liar, 7 * GIB if number % 2 else 0, number)
            assert scene.is_in()


def test_a_claim_that_changes_while_it_is_looked_at_is_within_the_limit(scene: Scene) -> None:
    scene.served.server.set_group("liar", memory=GIB)
    scene.confirm(0)
    liars = [scene.liar, *(RawClient(scene.served.path, "liar").attach() for _ in range(50))]
    slots = slice(wire.OFFSETS["GroupLedger.slots"], None)
    nothing, much = (size.to_bytes(8, "little") * 1024 for size in (0, 7 * GIB))
    ends = threading.Event()

    def waver() -> None:
        while not ends.is_set():
            scene.liar.ledger.memory[slots] = much
            scene.liar.ledger.memory[slots] = nothing

    wavering = threading.Thread(target=waver)
    wavering.start()
    try:
        for number in range(1, 20):
            for liar in liars:
                admits(liar, 0, number)
                assert scene.is_in()
    finally:
        ends.set()
        wavering.join()


def test_what_it_claims_as_it_leaves_is_within_the_limit(scene: Scene) -> None:
    scene.served.server.set_group("liar", memory=GIB)
    scene.confirm(0)
    liar = RawClient(scene.served.path, "liar", own_process=True).attach()
    liar.ledger.put("slots", 7 * GIB, index=liar.slot)
    assert liar.process is not None
    pid = liar.process.pid
    (told,) = (s for ledger in scene.served.server.members() for s in ledger["slots"] if s["pid"] == pid)
    assert told["fixed"] == GIB  # what the daemon after this one believes
    liar.ledger.put("slots", 8 * GIB, index=liar.slot)
    liar.close()
    wire.eventually(lambda: scene.served.groups()["liar"]["awaited"])
    for _ in range(5):
        scene.served.server.set_memory_of_processes(DEVICE, [(pid, None, (8 * GIB, 0, 0))])
        assert scene.is_in()


def test_what_is_within_the_limit_counts_before_the_driver_has_it(scene: Scene) -> None:
    scene.served.server.set_group("liar", memory=3 * GIB)
    scene.confirm(0)
    claims(scene.liar, 3 * GIB, 1)
    assert not scene.is_in()


def test_what_a_limit_that_fell_leaves_counts(scene: Scene) -> None:
    scene.served.server.set_group("liar", memory=7 * GIB)
    claims(scene.liar, 7 * GIB, 1)
    scene.confirm(7 * GIB)
    scene.served.server.set_group("liar", memory=GIB)
    claims(scene.liar, 7 * GIB, 2)
    assert not scene.is_in()


def test_a_group_is_admitted_with_no_more_than_its_programs_can_have(scene: Scene) -> None:
    """Twice the limit: one of them may have given back what it has not told of yet."""
    scene.served.server.set_group("liar", memory=GIB)
    other = RawClient(scene.served.path, "liar").attach()
    assert admits(scene.liar, GIB, 1) == wire.GRANTED
    assert admits(other, GIB, 1) == wire.GRANTED
    assert admits(other, GIB + 1, 2) != wire.GRANTED
    assert admits(scene.liar, GIB - 1, 2) == wire.GRANTED
    assert admits(other, GIB + 1, 3) == wire.GRANTED


def test_a_program_that_began_after_the_daemon_has_nothing_from_before(scene: Scene) -> None:
    time.sleep(0.02)  # two ticks of the clock by which programs begin
    liar = RawClient(scene.served.path, "new", own_process=True).attach()
    adopt(liar, ledgered=1 << 60)
    late = comes_late(scene)
    assert late.residency.get("allowed") == GIB
    assert scene.is_in()


def test_a_thousand_that_lie_of_before_cost_no_more_than_a_look_at_each(serve: Callable[..., Served]) -> None:
    """For each of them everybody's memory was settled anew, while nobody had a turn: 0.1 s, each time."""
    s = serve(claim_grace=1_000_000)
    s.server.add_device(DEVICE, 0)
    s.server.set_group("liar", resident=GIB)
    liars = [RawClient(s.path, "liar").attach() for _ in range(1000)]
    for number, liar in enumerate(liars):
        liar.ledger.put("slots", (1 << 20) + number, index=liar.slot)
        liar.send(wire.ADMIT, value=(1 << 20) + number, flags=wire.ADOPT)
    RawClient(s.path)
    took = []
    for look in range(5):
        for number, liar in enumerate(liars):
            liar.residency.put("mapped", number + look)
        began = time.thread_time()
        s.server.set_memory_of_processes(DEVICE, [(os.getpid(), 0, None)])
        took.append(time.thread_time() - began)
        time.sleep(0.01)
    assert min(took[1:]) < 0.03
