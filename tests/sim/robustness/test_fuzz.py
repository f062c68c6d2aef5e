"""A hostile client: random words in its page and ledger, random packets, mad orders, too many of everything.

It may get nothing it is not entitled to for long, and nobody else may notice. ``GEMLET_FUZZ_SEED`` repeats the packets
of a run, ``GEMLET_FUZZ_SECONDS`` and ``GEMLET_FUZZ_MESSAGES`` make it longer. Raw clients only, so the sanitizer jobs
run this file, too.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

native = pytest.importorskip("gemlet._native", reason="the native module is not built")

SECONDS = float(os.environ.get("GEMLET_FUZZ_SECONDS", "4"))
MESSAGES = int(os.environ.get("GEMLET_FUZZ_MESSAGES", "20000"))
MESSAGES_AT_A_TIME = 10_000  # of one process
ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60.0  # seconds for one turn, for what hangs
SEED = int(os.environ.get("GEMLET_FUZZ_SEED", str(time.time_ns() % 1_000_000)))


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    path = str(tmp_path_factory.mktemp("f") / "s")
    made = native.Server(claim_grace=20_000_000)
    made.add_device(bytes(16), 0, context_estimate=1 << 29)
    made.listen(path)
    made.start()
    yield made, path
    wire.end_all()
    made.stop()


def attackers(path: str, dice: random.Random, count: int) -> list[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # a sanitizer's
    command = [sys.executable, "-m", "tests.sim.robustness.attack", path]
    return [
        subprocess.Popen(
            [*command, str(dice.randrange(1 << 30)), str(MESSAGES_AT_A_TIME)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip


def take_turns(client: RawClient, count: int, until: float = 0.0) -> int:
    """A polite client that requests the token, runs for 2 ms and stops, ``count`` times and until ``until``. Returns
    how often in all."""
    turns = 0
    while turns < count or time.monotonic() < until:
        begin = time.monotonic()
        client.send(wire.REQUEST)
        while client.state != wire.RUN:
            if client.state == wire.REVOKED:  # taken back at once: the hook says that it stopped and still requests it
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


def disturb(s: Any, dice: random.Random, pids: list[int]) -> None:
    """What the daemon does meanwhile, of each now and then."""
    if dice.random() < 0.05:
        s.snapshot()
        s.take_events()
    if dice.random() < 0.05:
        s.set_group("rude", min=0.1, max=dice.random() * 0.8 + 0.2, memory=dice.randrange(1 << 40))
    if dice.random() < 0.05:
        s.set_memory_of_processes(bytes(16), [(dice.choice([os.getpid(), *pids]), dice.randrange(1 << 40), None)])
    if dice.random() < 0.05:
        s.set_memory_of_processes(
            bytes(16), [(dice.choice(pids), dice.choice([None, dice.randrange(1 << 40)]), (0, 0, 0))]
        )
    if dice.random() < 0.02:
        s.set_capacity(bytes(16), dice.choice([None, 0, 1 << 30, dice.randrange(1 << 40)]))
    if dice.random() < 0.02:
        s.set_group("other", users=dice.choice([None, [0], [12345], [12345, 67890]]))
    if dice.random() < 0.02:
        s.remove_group(dice.choice(["other", "rude", "fast"]))


def test_hostile_clients_disturb_no_other(server: tuple[Any, str]) -> None:
    print(f"GEMLET_FUZZ_SEED={SEED}")
    s, path = server
    s.set_group("polite", min=0.5, memory=1 << 30)
    s.set_group("shared")
    polite = RawClient(path, "polite").attach()
    polite.ledger.put("slots", 123_456, index=polite.slot)
    s.set_group("fast", priority="latency")
    until, dice = time.monotonic() + SECONDS, random.Random(SEED)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(take_turns(polite, 50, until)))
    thread.start()
    running = attackers(path, dice, 2)
    sent = 0
    while time.monotonic() < until or thread.is_alive() or sent < MESSAGES:
        for one in [one for one in running if one.poll() is not None]:
            running.remove(one)
            sent += int(one.communicate()[0])
            running += attackers(path, dice, 1)
        time.sleep(0.005)
        disturb(s, dice, [one.pid for one in running])
    for one in running:
        one.kill()
        one.communicate()
    print(f"{sent} messages")
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
        s.set_memory_of_processes(bytes(16), [(os.getpid(), 1 << 20, None)])
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
