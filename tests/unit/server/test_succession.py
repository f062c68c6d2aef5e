"""A server takes over from another: the sockets, those who are on their way in, and every byte of the ledgers. One that
comes after another was killed has only what that one had noted of its members.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server import wire
from tests.unit.server.conftest import native
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.server.conftest import Served

MIB = 1 << 20
HELD, REFUSALS_HELD = 1, 2
DEVICE = bytes(16)
LIMITS = {"min": 0.0, "memory": 1000 * MIB}


@pytest.fixture
def follow(serve: Callable[..., Served]) -> Iterator[Callable[[Served], Any]]:
    """Lets a new server take over. ``leave=False``: the elder has yet to leave."""
    made = []

    def take(elder: Served, *, leave: bool = True) -> Any:
        estate = elder.server.hand_over()
        server = native.Server(open=False)
        made.append(server)
        server.add_device(DEVICE, 0)
        server.set_group("g", **LIMITS)
        for listener in estate["listeners"]:
            server.inherit_listener(listener["path"], listener["fd"])
        server.listen(elder.path)
        for ledger in estate["ledgers"]:
            server.inherit_ledger(ledger)
        for caller in estate["callers"]:
            server.inherit_caller(caller)
        server.start()
        if leave:
            elder.server.leave()
        return server

    yield take
    wire.end_all()
    for server in made:
        server.stop()


@pytest.fixture
def elder(serve: Callable[..., Served]) -> Served:
    served = serve()
    served.server.add_device(DEVICE, 0, context_estimate=100 * MIB)
    served.server.set_group("g", **LIMITS)
    return served


def group(server: Any) -> dict[str, Any]:
    return next(dict(g) for d in server.snapshot()["devices"] for g in d["groups"] if g["name"] == "g")


def used_by_members(client: RawClient) -> int:
    """As the hook sums it up."""
    slots = range(client.limits.get("slot_count", size=4))
    return client.limits.get("untracked") + sum(client.ledger.get("slots", index=i) for i in slots)


def holds(client: RawClient, mib: int) -> RawClient:
    client.ledger.put("slots", mib * MIB, index=client.slot)
    return client


def test_memory_counts_before_its_owner_has_come_across(elder: Served, follow: Callable[..., Any]) -> None:
    first, second = (holds(RawClient(elder.path).attach(), mib) for mib in (300, 200))
    first.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: first.page.get("contexts", size=4) == 1)
    server = follow(elder)
    late = RawClient(elder.path).attach()
    # One of the two slots, both of this process, is the newcomer's now, with what is in it; the other stays as it is.
    assert late.slot in (first.slot, second.slot)
    assert used_by_members(late) == 600 * MIB
    assert late.limits.get("memory_limit") == LIMITS["memory"]
    assert used_by_members(first) == 600 * MIB  # who is yet to come sees the same
    again = RawClient(elder.path).attach()
    assert {late.slot, again.slot} == {first.slot, second.slot}
    third = holds(RawClient(elder.path, own_process=True).attach(), 50)
    assert used_by_members(late) == used_by_members(first) == 650 * MIB
    third.end()
    wire.eventually(lambda: used_by_members(late) == 600 * MIB)
    assert group(server)["memory_used"] == 600 * MIB


def test_what_a_context_takes_is_not_counted_twice(elder: Served, follow: Callable[..., Any]) -> None:
    client = RawClient(elder.path).attach()
    client.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: client.page.get("contexts", size=4) == 1)
    follow(elder)
    again = RawClient(elder.path).attach()
    assert used_by_members(again) == 100 * MIB
    again.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: again.page.get("contexts", size=4) == 1)
    assert used_by_members(again) == 100 * MIB


@pytest.fixture
def revive(serve: Callable[..., Served]) -> Iterator[Callable[..., Any]]:
    """A new server in the place of one that was killed, with what that had noted of its members."""
    made = []

    def start(dead: Served, noted: Any = None, rounds: int = 1 << 20, **changes: int) -> Any:
        noted = noted or dead.server.members()
        server = native.Server(lost_rounds=rounds)
        made.append(server)
        server.add_device(DEVICE, 0)
        server.set_group("g", **LIMITS)
        for ledger in noted:
            slots = [slot | {"before": slot["index"]} | changes for slot in ledger["slots"]]
            slots = [slot | {"fd": os.pidfd_open(slot["pid"])} for slot in slots]
            server.inherit_ledger(ledger | {"fd": -1, "slots": slots})
            for slot in slots:
                os.close(slot["fd"])
        dead.server.stop()  # closes what a kill would
        server.listen(dead.path)
        server.start()
        return server

    yield start
    wire.end_all()
    for server in made:
        server.stop()


def test_what_members_held_under_a_daemon_that_was_killed_counts(elder: Served, revive: Callable[..., Any]) -> None:
    first = holds(RawClient(elder.path).attach(), 300)
    first.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: first.page.get("contexts", size=4) == 1)
    server = revive(elder)
    assert group(server)["memory_used"] == 400 * MIB
    assert [(a["pid"], a["memory"], a["contexts"]) for a in group(server)["awaited"]] == [(os.getpid(), 300 * MIB, 1)]
    assert [(u["pid"], u["group"]) for u in server.snapshot()["unmanaged"]] == [(os.getpid(), "g")]
    assert not server.remove_group("g")
    back = RawClient(elder.path).attach()
    assert used_by_members(back) == 400 * MIB
    assert group(server)["awaited"] == []
    assert server.snapshot()["unmanaged"] == []
    holds(back, 200).send(wire.CONTEXT, value=1)
    wire.eventually(lambda: back.page.get("contexts", size=4) == 1)
    assert used_by_members(back) == 300 * MIB  # as it says itself
    back.close()
    wire.eventually(lambda: group(server)["awaited"])  # its process lives
    assert group(server)["memory_used"] == 300 * MIB
    assert not server.remove_group("g")


def hold(client: RawClient) -> int:
    return client.limits.get("held", size=4)


def is_held(client: RawClient) -> bool:
    return hold(client) == HELD


def test_nobody_takes_more_before_one_of_the_members_has_told(elder: Served, revive: Callable[..., Any]) -> None:
    noted = holds(RawClient(elder.path, own_process=True).attach(), 300)
    teller = holds(RawClient(elder.path).attach(), 100)
    server = revive(elder)
    holds(noted, 500)  # after the daemon had noted it
    other = RawClient(elder.path, own_process=True).attach()
    assert not other.is_to_tell
    assert is_held(other)
    assert used_by_members(other) == 400 * MIB
    back = RawClient(elder.path).attach(before=teller)
    assert back.is_to_tell
    back.tell(teller.number, {noted.slot: 500 * MIB, teller.slot: 100 * MIB}, all_of_it=False)
    wire.eventually(lambda: used_by_members(other) == 600 * MIB)
    assert is_held(other)
    back.tell(teller.number, {})
    wire.eventually(lambda: not is_held(other))
    assert group(server)["memory_used"] == 600 * MIB
    back.tell(teller.number, {noted.slot: 0})  # one tells, once
    assert not RawClient(elder.path).attach(before=noted).is_to_tell
    assert used_by_members(other) >= 600 * MIB


def test_one_that_nobody_had_noted_counts_as_soon_as_it_is_told_of(elder: Served, revive: Callable[..., Any]) -> None:
    teller = holds(RawClient(elder.path).attach(), 100)
    noted = elder.server.members()
    late = holds(RawClient(elder.path, own_process=True).attach(), 300)
    server = revive(elder, noted)
    back = RawClient(elder.path).attach(before=teller)
    back.tell(teller.number, {teller.slot: 100 * MIB, late.slot: 300 * MIB})
    wire.eventually(lambda: not is_held(back))
    assert group(server)["memory_used"] == 400 * MIB
    again = RawClient(elder.path, own_process=True).attach(before=late)
    assert again.held == 300 * MIB
    assert group(server)["memory_used"] == 400 * MIB


def test_nobody_is_refused_for_one_that_may_have_ended(elder: Served, revive: Callable[..., Any]) -> None:
    teller = holds(RawClient(elder.path).attach(), 100)
    noted = elder.server.members()
    gone = holds(RawClient(elder.path, own_process=True).attach(), 300)
    revive(elder, noted, rounds=10)
    back = RawClient(elder.path).attach(before=teller)
    assert is_held(back)
    back.tell(teller.number, {teller.slot: 100 * MIB, gone.slot: 300 * MIB})
    gone.end()
    wire.eventually(lambda: hold(back) == REFUSALS_HELD)
    assert used_by_members(back) == 400 * MIB
    wire.eventually(lambda: not hold(back))
    assert used_by_members(back) == 100 * MIB


def test_the_ledger_is_not_held_for_long_where_none_comes(elder: Served, revive: Callable[..., Any]) -> None:
    holds(RawClient(elder.path, own_process=True).attach(), 300)
    revive(elder, rounds=2)
    other = RawClient(elder.path).attach()
    wire.eventually(lambda: not is_held(other))
    assert used_by_members(other) == 300 * MIB


def test_one_that_ends_is_not_waited_for(elder: Served, revive: Callable[..., Any]) -> None:
    last = holds(RawClient(elder.path, own_process=True).attach(), 300)
    revive(elder)
    other = RawClient(elder.path).attach()
    assert is_held(other)
    last.end()
    wire.eventually(lambda: not is_held(other))
    assert used_by_members(other) == 0


def test_a_page_of_before_is_held_from_the_moment_its_daemon_leaves(elder: Served, follow: Callable[..., Any]) -> None:
    old = holds(RawClient(elder.path).attach(), 300)
    server = follow(elder, leave=False)
    new = RawClient(elder.path).attach()
    assert (is_held(old), is_held(new)) == (False, True)
    elder.server.leave()
    assert (is_held(old), is_held(new)) == (True, True)
    server.govern()
    assert not is_held(new)
    assert old.number == new.number


def test_the_driver_may_know_of_more(elder: Served, revive: Callable[..., Any]) -> None:
    holds(RawClient(elder.path).attach(), 300)
    server = revive(elder)
    for said, counted in ((500, 500), (100, 500), (600, 600)):
        server.set_memory_of_processes(DEVICE, [(os.getpid(), said * MIB, (300 * MIB, 0, 0))])
        assert group(server)["memory_used"] == counted * MIB
    server.set_memory_of_processes(DEVICE, [(os.getpid(), 900 * MIB, (200 * MIB, 0, 0))])  # of another moment
    assert group(server)["memory_used"] == 600 * MIB


def test_what_is_awaited_is_noted_again(elder: Served, revive: Callable[..., Any]) -> None:
    holds(RawClient(elder.path).attach(), 300)
    (before,) = elder.server.members()
    server = revive(elder)
    (after,) = server.members()
    named = ("pid", "uid", "started", "who", "administrator", "contexts", "used", "untracked", "fixed")
    assert [[s[name] for name in named] for s in after["slots"]] == [[s[n] for n in named] for s in before["slots"]]
    assert (after["device"], after["group"]) == (DEVICE, "g")


def test_one_that_ends_is_awaited_no_more(elder: Served, revive: Callable[..., Any]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        holds(RawClient(elder.path).attach(), 300)
        server = revive(elder, pid=other.pid)
        assert group(server)["memory_used"] == 300 * MIB
        other.kill()
    wire.eventually(lambda: group(server)["memory_used"] == 0)
    assert group(server)["awaited"] == []
    assert server.remove_group("g")


HOLDER = """
import sys
from tests.unit.server.wire import RawClient
client = RawClient(sys.argv[1]).attach()
client.ledger.put("slots", 300 << 20, index=client.slot)
print("holds", flush=True)
sys.stdin.read()
"""


def test_memory_of_one_that_ends_meanwhile_is_free(elder: Served, follow: Callable[..., Any]) -> None:
    mine = RawClient(elder.path).attach()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, elder.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        follow(elder)
        mine = RawClient(elder.path).attach()
        assert used_by_members(mine) == 300 * MIB
        holder.kill()
    wire.eventually(lambda: used_by_members(mine) == 0)


def test_the_sockets_stay(elder: Served, follow: Callable[..., Any]) -> None:
    before = Path(elder.path).stat().st_ino
    silent = RawClient(elder.path, join=False)
    joined = RawClient(elder.path)
    assert elder.server.snapshot()["devices"]  # both are known
    follow(elder)
    assert Path(elder.path).stat().st_ino == before
    assert silent.ask(wire.HELLO, group=b"g").status == wire.OK
    assert silent.attach().page.get("attached", size=4) == 1
    assert joined.attach().page.get("attached", size=4) == 1


def test_nobody_is_told_but_that_the_connection_is_gone(elder: Served, follow: Callable[..., Any]) -> None:
    """As if the daemon had been killed: who waits keeps to the last shares, and does not run without limits."""
    client = RawClient(elder.path).attach()
    client.send(wire.REQUEST, epoch=client.epoch)
    client.await_state(wire.RUN)
    other = RawClient(elder.path).attach()
    other.send(wire.REQUEST, epoch=other.epoch)
    states = client.state, other.state
    follow(elder)
    assert (client.page.get("attached", size=4), other.page.get("attached", size=4)) == (1, 1)
    assert (client.state, other.state) == states
    for each in (client, other):
        with pytest.raises(ConnectionError):
            each.receive()


def test_the_elder_can_go_on(elder: Served) -> None:
    client = holds(RawClient(elder.path).attach(), 300)
    elder.server.hand_over()
    client.send(wire.REQUEST, epoch=client.epoch)
    late = RawClient(elder.path, join=False)
    elder.server.start()
    client.await_state(wire.RUN)
    assert late.ask(wire.HELLO, group=b"g").status == wire.OK
    assert group(elder.server)["memory_used"] == 300 * MIB


def test_a_socket_that_nobody_listens_at_any_more_goes(elder: Served, follow: Callable[..., Any]) -> None:
    other = elder.path + "2"
    elder.server.listen(other, group="h")
    follow(elder)
    assert not os.path.lexists(other)


@pytest.mark.parametrize("what", ["another size", "not sealed", "no memory"])
def test_memory_that_no_daemon_made_is_refused(what: str) -> None:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING) if what != "no memory" else os.open(os.devnull, os.O_RDWR)
    try:
        if what == "not sealed":
            os.truncate(fd, 64 + 8 * 1024)
        server = native.Server()
        image = {"device": DEVICE, "index": 0, "context_estimate": 0, "group": "g", "fd": fd, "slots": []}
        with pytest.raises(ValueError, match="not a daemon's"):
            server.inherit_ledger(image)
    finally:
        os.close(fd)


# It writes what is in a page that somebody would have to bring, and nobody does.
WRITES_FOR_EVER = """
import ctypes, fcntl, os, struct, sys
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_long] * 4]
libc.write.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
faults = libc.syscall(int(sys.argv[2]), os.O_CLOEXEC)
fcntl.ioctl(faults, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))  # UFFDIO_API
page = libc.mmap(0, 4096, 3, 0x22, -1, 0)
fcntl.ioctl(faults, 0xC020AA00, struct.pack("QQQQ", page, 4096, 1, 0))  # UFFDIO_REGISTER
libc.write(int(sys.argv[1]), page, 4096)
"""
SYS_WRITE, SYS_USERFAULTFD = {"x86_64": (1, 323), "aarch64": (64, 282)}.get(platform.machine(), (0, 0))


@pytest.mark.skipif(os.getuid() != 0 or not SYS_USERFAULTFD, reason="only root may leave the kernel without a page")
def test_a_member_that_writes_to_the_ledger_for_ever_does_not_hold_up_a_successor(
    elder: Served, follow: Callable[..., Any]
) -> None:
    descriptors = RawClient(elder.path).ask(wire.ATTACH, uuid=DEVICE).descriptors
    ledger = descriptors[2]
    member = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(ledger), str(SYS_USERFAULTFD)], pass_fds=[ledger]
    )
    for descriptor in descriptors:
        os.close(descriptor)
    ends_it = threading.Timer(30.0, member.kill)  # else a server that waits for it would for ever
    try:
        call = Path(f"/proc/{member.pid}/syscall")
        wire.eventually(lambda: member.poll() is not None or call.read_text().startswith(f"{SYS_WRITE} {ledger:#x} "))
        if member.poll() is not None:
            pytest.skip("the kernel has no userfaultfd(2)")
        ends_it.start()
        follow(elder)
        assert member.poll() is None
    finally:
        ends_it.cancel()
        member.kill()
        member.wait()
