"""A hostile client: random words in its page and ledger, random packets, mad orders, too many of everything.

It may get nothing it is not entitled to for long, and nobody else may notice. ``GEMLET_FUZZ_SEED`` repeats a run and
``GEMLET_FUZZ_SECONDS`` makes it longer. Raw clients only, so the sanitizer jobs run this file, too.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

native = pytest.importorskip("gemlet._native", reason="the native module is not built")

SECONDS = float(os.environ.get("GEMLET_FUZZ_SECONDS", "4"))
PATIENCE = 60.0  # seconds for one turn, for what hangs
SEED = int(os.environ.get("GEMLET_FUZZ_SEED", str(time.time_ns() % 1_000_000)))


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    path = str(tmp_path_factory.mktemp("f") / "s")
    made = native.Server()
    made.add_device(bytes(16), 0, context_estimate=1 << 29)
    made.listen(path)
    made.start()
    yield made, path
    for client in wire.opened:
        client.close()
    wire.opened.clear()
    made.stop()


def word(dice: random.Random) -> int:
    return dice.choice([0, 1, 2, 3, 4, 7, 2**32 - 1, 2**63, 2**64 - 5, 2**64 - 1, dice.randrange(2**64)])


def one_packet(dice: random.Random, epoch: int) -> bytes:
    kind = dice.choice([*range(1, 12), dice.randrange(65536)])
    if kind == wire.CREATE_GROUP and dice.random() < 0.9:
        kind = wire.REQUEST
    packet = bytearray(
        wire.pack(
            kind,
            device=dice.choice([0, 0, 0, 0, 1, 63, 64, 2**32 - 1]),
            epoch=dice.choice([epoch, epoch, epoch, epoch + 1, epoch - 1, word(dice)]) % 2**32,
            reason=word(dice) % 2**32,
            flags=word(dice) % 2**32,
            tail_ns=word(dice),
            time_ns=word(dice),
            value=word(dice),
            uuid=dice.randbytes(16) if dice.random() < 0.3 else bytes(16),
            group=dice.randbytes(256),
        )
    )
    if dice.random() < 0.02:
        packet[dice.randrange(len(packet))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.01:
        return bytes(packet[: dice.randrange(len(packet))])
    if dice.random() < 0.01:
        return bytes(packet) + dice.randbytes(dice.randrange(1, 60_000))
    return bytes(packet)


def attack(dice: random.Random, path: str) -> None:
    try:
        rude = RawClient(path, dice.choice(["rude", "rude", "other", "shared"])).attach()
        rude.socket.setblocking(False)
        for _ in range(dice.randrange(200)):
            if dice.random() < 0.3:
                at = dice.randrange(16) * 8
                rude.page.memory[at : at + 8] = word(dice).to_bytes(8, "little")
            if dice.random() < 0.2:
                at = 8 * dice.choice([0, dice.randrange(1032)])
                rude.ledger.memory[at : at + 8] = word(dice).to_bytes(8, "little")
            if dice.random() < 0.05:
                with socket.socket() as extra:
                    socket.send_fds(
                        rude.socket, [one_packet(dice, rude.epoch)], [extra.fileno()] * dice.randrange(1, 100)
                    )
            else:
                rude.socket.send(one_packet(dice, rude.epoch))
        if dice.random() < 0.5:
            rude.close()
    except (OSError, AssertionError, ValueError):
        pass  # dropped or turned away


def take_turns(client: RawClient, count: int, until: float = 0.0) -> int:
    """A polite client that wants, runs for 2 ms and stops, ``count`` times and until ``until``: how often in all."""
    turns = 0
    while turns < count or time.monotonic() < until:
        begin = time.monotonic()
        client.send(wire.REQUEST)
        while client.state != wire.RUN:
            if client.state == wire.REVOKED:  # taken back at once: the hook says that it stopped and still wants
                client.stop(wire.BY_REVOCATION, wants=True)
            assert time.monotonic() < begin + PATIENCE, f"state {client.state}"
            time.sleep(0.0002)
        time.sleep(0.002)
        client.stop()
        turns += 1
        client_left(client)
    return turns


def client_left(client: RawClient) -> None:
    end = time.monotonic() + PATIENCE
    while client.state == wire.STOPPING:
        assert time.monotonic() < end, "the stop was not heard"
        time.sleep(0.0002)


def test_hostile_clients_disturb_no_other(server: tuple[Any, str]) -> None:
    print(f"GEMLET_FUZZ_SEED={SEED}")
    s, path = server
    s.set_group("polite", min=0.5, memory=1 << 30)
    s.set_group("shared")
    polite = RawClient(path, "polite").attach()
    polite.ledger.put("slots", 123_456, index=polite.slot)
    until, dice = time.monotonic() + SECONDS, random.Random(SEED)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(take_turns(polite, 50, until)))
    thread.start()
    while time.monotonic() < until or thread.is_alive():
        attack(dice, path)
        if dice.random() < 0.05:
            s.snapshot()
            s.take_events()
        if dice.random() < 0.05:
            s.set_group("rude", min=0.1, max=dice.random() * 0.8 + 0.2, memory=dice.randrange(1 << 40))
        if dice.random() < 0.05:
            s.set_process_memory(bytes(16), os.getpid(), dice.randrange(1 << 40))
    assert result, f"the polite client was left waiting (GEMLET_FUZZ_SEED={SEED})"
    group = next(g for d in s.snapshot()["devices"] for g in d["groups"] if g["name"] == "polite")
    assert group["clients"][0]["memory"] == 123_456
    for client in wire.opened:
        if client is not polite:
            client.close()
    end = time.monotonic() + PATIENCE
    while any(g["clients"] for d in s.snapshot()["devices"] for g in d["groups"] if g["name"] != "polite"):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_that_never_stops_is_gone_around(server: tuple[Any, str]) -> None:
    s, path = server
    s.set_group("capped", max=0.2)
    greedy = RawClient(path, "capped").attach()
    greedy.send(wire.REQUEST)
    greedy.await_state(wire.RUN)
    polite = RawClient(path, "polite").attach()
    take_turns(polite, 20)
    # Wanting again, claiming to have taken what was not parked, stopping for other epochs: no second turn in time.
    for _ in range(50):
        greedy.send(wire.REQUEST)
        greedy.send(wire.TOOK, epoch=greedy.epoch)
        greedy.send(wire.STOPPED, epoch=greedy.epoch + 1)
    take_turns(polite, 20)


def test_devices_nobody_has_seen_leave_room_for_those_that_exist(server: tuple[Any, str]) -> None:
    _, path = server
    for _ in range(2):
        rude = RawClient(path, "rude")
        for i in range(70):
            rude.ask(wire.ATTACH, uuid=os.urandom(16), value=i)
        rude.close()
    time.sleep(0.1)
    RawClient(path, "polite").attach(b"a new device 123")


def test_a_name_that_a_terminal_would_act_on_is_refused(server: tuple[Any, str]) -> None:
    s, path = server
    rude = RawClient(path, join=False)
    assert rude.ask(wire.HELLO, group=b"\x1b[2Jx", flags=wire.CREATE_GROUP).status == wire.MALFORMED
    assert not any("\x1b" in event["text"] for event in s.take_events())


def test_without_descriptors_clients_are_turned_away_and_nothing_is_half_made(server: tuple[Any, str]) -> None:
    s, path = server
    polite = RawClient(path, "polite").attach()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    for spare in range(2, 16):
        joined = RawClient(path, f"late-{spare}")
        s.set_group(f"late-{spare}", memory=1 << 30)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(used, before) + spare % 5, hard))
            for _ in range(8):
                RawClient(path, f"late-{spare}").attach()
        except (OSError, AssertionError, ValueError):
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        s.set_group(f"late-{spare}", memory=2 << 30)  # walks over what was made
        s.snapshot()
        s.set_process_memory(bytes(16), os.getpid(), 1 << 20)
        joined.close()
    take_turns(polite, 5)
    RawClient(path, "late-2").attach()


def test_thousands_of_connections(server: tuple[Any, str]) -> None:
    _, path = server
    polite = RawClient(path, "polite").attach()
    thread = threading.Thread(target=lambda: result.append(take_turns(polite, 20)))
    result: list[int] = []
    thread.start()
    count, kept = 0, []
    while count < 2000 or thread.is_alive():
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(1)
        kept.append(one)
        try:
            one.connect(path)
        except BlockingIOError:  # more than the server has taken so far
            time.sleep(0.001)
            continue
        count += 1
        if len(kept) > 300:
            for old in kept:
                old.close()
            kept.clear()
    for old in kept:
        old.close()
    assert result
