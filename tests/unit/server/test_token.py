"""The token as clients see it: grants, deadlines, parking, revocation, and everybody's death."""

from __future__ import annotations

import ctypes
import platform
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

MS = 1_000_000


def test_a_lone_client_runs_without_a_deadline(serve: Callable[..., Served]) -> None:
    a = RawClient(serve().path).attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    assert a.page.get("deadline_ns") == wire.NEVER
    assert a.page.get("idle_ns", size=4) == 5 * MS


def test_a_second_client_ends_the_first_ones_quantum_and_gets_the_token(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST)
    wire.eventually(lambda: a.page.get("deadline_ns") != wire.NEVER)
    assert a.page.get("deadline_ns") - time.monotonic_ns() < 100 * MS
    assert a.page.get("idle_ns", size=4) == MS // 10
    a.stop(wants=True)
    b.await_state(wire.RUN)
    a.await_state(wire.BLOCKED)
    b.stop(wants=True)
    a.await_state(wire.RUN)


def test_clients_share_the_device_while_no_promise_is_in_danger(serve: Callable[..., Served]) -> None:
    s = serve(open=True)
    clients = [RawClient(s.path, name).attach() for name in ("a", "b", "c")]
    for client in clients:
        client.send(wire.REQUEST)
    for client in clients:
        client.await_state(wire.RUN)
        assert client.page.get("deadline_ns") == wire.NEVER
    wire.eventually(lambda: all(client.page.get("flags", size=4) == wire.SHARED for client in clients))
    assert {group["why"] for group in s.groups().values()} == {"shares"}


def test_two_that_never_run_dry_take_turns(serve: Callable[..., Served]) -> None:
    s = serve(open=True)
    a, b = (RawClient(s.path, name).attach() for name in ("a", "b"))
    for client in (a, b):
        client.send(wire.REQUEST)
        client.await_state(wire.RUN)

    def one_must_stop() -> bool:
        for client in (a, b):
            for counter in ("samples", "busy_samples", "awaited_samples", "launches"):
                client.page.put(counter, client.page.get(counter) + 10)
        return wire.REVOKED in (a.state, b.state)

    wire.eventually(one_must_stop)


def test_an_idle_token_is_parked_and_taken_without_asking(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    a.stop(wire.IDLE)
    a.await_state(wire.PARKED)
    a.page.put("token", a.epoch << 3 | wire.RUN, size=4)
    a.send(wire.TOOK, epoch=a.epoch)
    wire.eventually(lambda: s.groups()["a"]["holding"] == 1)
    a.stop(wire.IDLE)
    a.await_state(wire.PARKED)
    b.send(wire.REQUEST)
    b.await_state(wire.RUN)
    a.await_state(wire.BLOCKED)


def test_a_turn_whose_end_is_said_before_its_begin(serve: Callable[..., Served]) -> None:
    """One thread takes the parked token and is held up before it says so; another finds that nobody uses it."""
    s = serve()
    a = RawClient(s.path, "a").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    a.stop(wire.IDLE)
    a.await_state(wire.PARKED)
    taken = a.epoch
    a.page.put("token", taken << 3 | wire.RUN, size=4)
    a.stop(wire.IDLE)
    a.send(wire.TOOK, epoch=taken)
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    assert s.groups()["a"]["holding"] == 1


def test_a_holder_that_does_not_stop_is_passed_over(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST)  # a never answers: stopped by a signal, or its kernel runs for minutes
    b.await_state(wire.RUN)


def test_a_latency_client_revokes_the_holder(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("urgent", priority="latency")
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "urgent").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST)
    a.await_state(wire.REVOKED)
    a.stop(wire.BY_REVOCATION, wants=True)
    b.await_state(wire.RUN)


def test_a_latency_client_takes_its_parked_token_while_another_runs(serve: Callable[..., Served]) -> None:
    s = serve(grace=10_000_000_000)
    s.server.set_group("urgent", priority="latency")
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "urgent").attach()
    b.send(wire.REQUEST)
    b.await_state(wire.RUN)
    a.send(wire.REQUEST)
    time.sleep(0.01)
    b.stop(wire.IDLE)
    a.await_state(wire.RUN)
    b.await_state(wire.PARKED)
    b.page.put("token", b.epoch << 3 | wire.RUN, size=4)
    b.shared.put("urgent", 1, size=4)
    b.send(wire.TOOK, epoch=b.epoch)
    a.await_state(wire.REVOKED)
    assert a.shared.get("urgent", size=4) == 1
    assert b.state == wire.RUN
    a.stop(wire.BY_REVOCATION, wants=True)
    a.await_state(wire.BLOCKED)
    b.stop(wire.IDLE)
    a.await_state(wire.RUN)
    b.await_state(wire.PARKED)


def test_a_parked_token_has_no_deadline_of_an_earlier_turn(serve: Callable[..., Served]) -> None:
    """It would be over as soon as it was taken, before the daemon has said how long the new turn is."""
    s = serve(grace=10_000_000_000)
    s.server.set_group("urgent", priority="latency")
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "urgent").attach()
    b.send(wire.REQUEST)
    b.await_state(wire.RUN)
    a.send(wire.REQUEST)
    wire.eventually(lambda: b.page.get("deadline_ns") != wire.NEVER)
    b.stop(wire.IDLE)
    b.await_state(wire.PARKED)
    assert b.page.get("deadline_ns") == wire.NEVER


def test_a_request_of_an_earlier_epoch_is_late(serve: Callable[..., Served]) -> None:
    """It was sent before the token was parked, which its client has seen by now."""
    s = serve(grace=10_000_000_000)
    s.server.set_group("urgent", priority="latency")
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "urgent").attach()
    b.send(wire.REQUEST)
    b.await_state(wire.RUN)
    a.send(wire.REQUEST)
    b.stop(wire.IDLE)
    b.await_state(wire.PARKED)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST, epoch=b.epoch - 1)
    time.sleep(0.02)
    assert s.groups()["urgent"]["waiting"] == 0
    assert (a.state, b.state) == (wire.RUN, wire.PARKED)
    b.page.put("token", b.epoch << 3 | wire.RUN, size=4)
    b.send(wire.TOOK, epoch=b.epoch)
    a.await_state(wire.REVOKED)
    assert s.groups()["urgent"]["holding"] == 1


def test_clients_of_mps_hold_together_as_far_as_their_fractions_allow(serve: Callable[..., Served]) -> None:
    s = serve(grace=10_000_000_000)
    for name, sm in (("left", 0.5), ("right", 0.5), ("wide", 1.0)):
        s.server.set_group(name, sm=sm)
    left = RawClient(s.path, "left").attach(flags=wire.UNDER_MPS)
    right = RawClient(s.path, "right").attach(flags=wire.UNDER_MPS)
    without = RawClient(s.path, "right").attach()  # has the whole device, whatever its group's fraction says
    left.send(wire.REQUEST)
    right.send(wire.REQUEST)
    left.await_state(wire.RUN)
    right.await_state(wire.RUN)
    assert [c["mps"] for c in s.groups()["right"]["clients"]] in ([True, False], [False, True])
    right.stop(wire.IDLE)
    without.send(wire.REQUEST)
    time.sleep(0.005)
    assert without.state == wire.BLOCKED
    left.stop(wire.IDLE)
    without.await_state(wire.RUN)


def test_the_death_of_the_holder_frees_the_token(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST)
    a.close()
    b.await_state(wire.RUN)
    assert s.groups()["a"]["clients"] == [] if "a" in s.groups() else True


def test_when_the_server_stops_every_client_may_run(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.send(wire.REQUEST)
    a.await_state(wire.RUN)
    b.send(wire.REQUEST)
    s.server.stop()
    assert (a.state, b.state) == (wire.RUN, wire.RUN)


def test_when_the_server_stops_strict_clients_wait(serve: Callable[..., Served]) -> None:
    """Whether they run, wait or are about to stop; and so does one that the daemon drops."""
    s = serve()
    names = ("runs", "waits", "idle", "dropped")
    runs, waits, idle, dropped = (RawClient(s.path, n, flags=wire.CREATE_GROUP | wire.STRICT).attach() for n in names)
    dropped.send(wire.REQUEST)
    dropped.await_state(wire.RUN)
    dropped.send(999)  # makes no sense
    dropped.await_state(wire.BLOCKED)
    runs.send(wire.REQUEST)
    runs.await_state(wire.RUN)
    waits.send(wire.REQUEST)
    s.server.stop()
    assert [c.state for c in (runs, waits, idle)] == [wire.BLOCKED] * 3
    assert [c.page.get("attached", size=4) for c in (runs, waits, idle)] == [0] * 3


def test_five_hundred_clients(serve: Callable[..., Served]) -> None:
    s = serve()
    clients = [RawClient(s.path, f"g{i % 50}").attach() for i in range(500)]
    for c in clients:
        c.send(wire.REQUEST)
    served: set[int] = set()
    end = time.monotonic() + 120
    while len(served) < 30 and time.monotonic() < end:
        for i, c in enumerate(clients):
            if c.state == wire.RUN:
                served.add(i)
                c.stop(wants=True)
    assert len(served) >= 30
    for c in clients:
        c.close()
    wire.eventually(lambda: not any(g["clients"] for g in s.groups().values()))


def test_a_minimum_is_in_force_on_its_device_alone(serve: Callable[..., Served]) -> None:
    s = serve()
    uuids = [bytes([n]) * 16 for n in (1, 2)]
    for index, uuid in enumerate(uuids):
        s.server.add_device(uuid, index)
    terms = {"max": 1.0, "weight": 1.0, "memory": None, "resident": None, "users": None}
    s.server.set_group("g", min=0.5, device=1, **terms)
    clients = [wire.RawClient(s.path).attach(uuid) for uuid in uuids]

    def minima() -> list[float]:
        return [group["min"] for device in s.server.snapshot()["devices"] for group in device["groups"]]

    assert minima() == [0.0, 0.5]
    s.server.set_group("g", min=0.25, device=0, **terms)
    assert minima() == [0.25, 0.0]
    s.server.set_group("g", min=0.75, **terms)
    assert minima() == [0.75, 0.75]
    del clients


SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
FUTEX_WAIT, FUTEX_WAKE = 0, 1  # linux/futex.h
WOKEN_AT_ONCE = 64  # native/futex.h


@pytest.mark.skipif(SYS_FUTEX is None, reason="the number of futex(2) is not known here")
def test_the_server_does_not_wake_thousands_of_threads_that_wait_for_one_token(serve: Callable[..., Served]) -> None:
    """Each takes microseconds, in which nobody has a turn: with 10,000, 75 ms for each message of their program."""
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    futex = ctypes.CDLL(None).syscall
    token = ctypes.byref(ctypes.c_uint32.from_buffer(a.page.memory))
    word, woken, many = a.page.get("token", size=4), [], 8 * WOKEN_AT_ONCE
    threads = [
        threading.Thread(target=lambda: woken.append(futex(SYS_FUTEX, token, FUTEX_WAIT, word, None, None, 0)))
        for _ in range(many)
    ]
    for thread in threads:
        thread.start()
    wait = str(SYS_FUTEX), hex(ctypes.cast(token, ctypes.c_void_p).value or 0)
    try:
        wire.eventually(
            lambda: all(
                tuple(Path(f"/proc/self/task/{t.native_id}/syscall").read_text().split()[:2]) == wait for t in threads
            )
        )
        a.send(wire.REQUEST)
        a.await_state(wire.RUN)
        b.send(wire.REQUEST)  # its answer comes after all that was done for the one before
        wire.eventually(lambda: a.page.get("deadline_ns") != wire.NEVER)
    finally:
        left = futex(SYS_FUTEX, token, FUTEX_WAKE, many, None, None, 0)
        for thread in threads:
            thread.join()
    assert many - left <= 4 * WOKEN_AT_ONCE
