"""Devices, groups and clients go in any order: what one of them still holds lives as long as it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

ROOT = Path(__file__).resolve().parents[3]
DEVICES = 64  # as many as a server knows at a time; it forgets unused ones for the sake of new ones

LEAVES = """
import sys, time
from tests.unit.server.test_lifetime import attach
attach(sys.argv[1], "leaving", range(30)).close()
print("left", flush=True)
time.sleep(600)
"""


def device(number: int) -> bytes:
    return number.to_bytes(16, "big")


def attach(path: str, group: str, numbers: range) -> RawClient:
    """A client that attaches devices which nobody has seen."""
    client = RawClient(path, group)
    for number in numbers:
        for descriptor in client.ask(wire.ATTACH, uuid=device(number)).descriptors:
            os.close(descriptor)
    return client


def test_devices_are_forgotten_when_the_process_that_used_them_has_ended(serve: Callable[..., Served]) -> None:
    """Its connection alone tells nothing: what it holds there counts."""
    s = serve()
    with subprocess.Popen([sys.executable, "-c", LEAVES, s.path], cwd=ROOT, stdout=subprocess.PIPE) as leaving:
        try:
            assert leaving.stdout
            assert leaving.stdout.readline() == b"left\n"
            wire.eventually(lambda: not s.groups()["leaving"]["clients"])
            attach(s.path, "others", range(100, 100 + DEVICES - 30))
            assert any(d["uuid"] == device(0) for d in s.server.snapshot()["devices"])
        finally:
            leaving.kill()
    wire.eventually(lambda: not any(g["awaited"] for d in s.server.snapshot()["devices"] for g in d["groups"]))
    attach(s.path, "more", range(200, 230))
    assert not any(d["uuid"] == device(0) for d in s.server.snapshot()["devices"]), "not forgotten"
    polite = RawClient(s.path, "polite").attach(device(100))
    polite.send(wire.REQUEST)
    polite.await_state(wire.RUN)


MANY = """
import os, sys
from tests.unit.server import wire
from tests.unit.server.wire import RawClient
for number in range(int(sys.argv[2])):
    client = RawClient(sys.argv[1], "many", flags=0).attach()
    size = 1 << (21 if number % 2 else 29)
    client.residency.put("movable", size)
    client.ledger.put("slots", size, index=client.slot)
    client.send(wire.ADMIT, value=size)
print("there", flush=True)
sys.stdin.read()
"""


def test_a_thousand_that_end_at_once_do_not_stop_the_turns_of_others(serve: Callable[..., Served]) -> None:
    """Where their memory could move that took 1.2 s, in which nobody else was heard."""
    s = serve()
    s.server.set_group("many", resident=1 << 30)
    other = RawClient(s.path, "other").attach()
    command = [sys.executable, "-c", MANY, s.path, "1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as many:
        assert many.stdout is not None
        assert many.stdout.readline() == b"there\n"
        wire.eventually(lambda: s.server.snapshot(listed=False)["devices"][0]["groups"])
        many.kill()
    heard = 0  # of another's requests, while they end one after the other
    while any(g["programs"] or g["expected"] for g in s.groups().values() if g["name"] == "many"):
        before = other.page.get("heard_ns")
        other.send(wire.REQUEST)
        wire.eventually(lambda before=before: other.page.get("heard_ns") != before)
        heard += 1
    assert heard > 2  # without turns between them one at most, at the begin or the end
