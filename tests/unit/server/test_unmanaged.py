"""Programs that come to the daemon and are not governed show in its snapshot, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.server import wire
from tests.unit.server.wire import RawClient, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

ROOT = Path(__file__).resolve().parents[3]


def unmanaged(s: Served) -> list[dict[str, Any]]:
    return list(s.server.snapshot()["unmanaged"])


def the_one(s: Served) -> tuple[str, str, bool | None, bool]:
    (one,) = unmanaged(s)
    assert (one["pid"], one["uid"]) == (os.getpid(), os.getuid())
    return one["group"], one["why"], one["strict"], one["joined"]


def test_one_that_keeps_to_its_limits_is_not_outside(serve: Callable[..., Served]) -> None:
    """It had them of a daemon before, and is not at fault if this one does not know its group."""
    s = serve()
    for flags, inside in ((wire.CREATE_GROUP, {}), (0, {os.getpid(): "?g"})):
        answer = RawClient(s.path, join=False).ask(wire.HELLO, group=b"\1g", flags=flags)
        assert answer.status != wire.OK
        assert s.server.groups_by_pid() == inside


def test_one_that_has_joined_shows_until_it_uses_a_device(serve: Callable[..., Served]) -> None:
    s = serve()
    assert unmanaged(s) == []
    client = RawClient(s.path, "g", flags=wire.CREATE_GROUP | wire.STRICT)
    assert the_one(s) == ("g", "has used no device so far", True, True)
    client.attach()
    assert unmanaged(s) == []


def test_one_that_gets_no_place_shows_why(serve: Callable[..., Served]) -> None:
    s = serve(uses=1)
    RawClient(s.path, "g").attach()
    late = RawClient(s.path, "late")
    assert late.ask(wire.ATTACH).status == wire.FULL
    # Of this process the other client is governed, this one is not.
    group, why, strict, joined = the_one(s)
    assert (group, strict, joined) == ("late", False, False)
    assert "uses of devices" in why


def test_one_that_is_turned_away_shows_while_it_lives(serve: Callable[..., Served]) -> None:
    s = serve(connections=1)
    kept = RawClient(s.path, "g").attach()
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]);"
    other = subprocess.Popen([sys.executable, "-c", program + "sys.stdin.read()", s.path], stdin=subprocess.PIPE)
    try:
        eventually(lambda: unmanaged(s))
        (one,) = unmanaged(s)
        assert (one["pid"], one["strict"], one["joined"]) == (other.pid, None, False)
        assert "of 1 connections" in one["why"]
    finally:
        other.communicate()
    assert unmanaged(s) == []
    assert kept.state in {wire.PARKED, wire.BLOCKED}


def test_others_versions_and_groups_show(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("g")
    old = RawClient(s.path, join=False)
    assert old.ask(wire.HELLO, version=1, group=b"g").status == wire.MISMATCH
    assert the_one(s)[1].endswith("the hook version 1")
    unknown = RawClient(s.path, join=False)
    assert unknown.ask(wire.HELLO, group=b"nobody's", flags=0).status == wire.UNKNOWN
    assert the_one(s) == ("nobody's", "there is no such group", False, False)
    RawClient(s.path, "g").attach()  # governed after all
    assert unmanaged(s) == []


def test_one_that_cannot_map_its_pages_says_so_and_leaves(serve: Callable[..., Served]) -> None:
    s = serve()
    client = RawClient(s.path, "g").attach()
    client.send(wire.LEAVES, text=b"no descriptor is\x1b[2J left")
    eventually(lambda: unmanaged(s))
    assert the_one(s) == ("g", "it says: no descriptor is?[2J left", False, False)
    assert not s.groups().get("g", {}).get("clients")


def test_the_list_is_bounded(serve: Callable[..., Served]) -> None:
    """Many processes that are refused: the list is bounded, and costs the daemon little."""
    s = serve()
    s.server.set_group("g", users=[])
    program = """
import os, sys
sys.path.insert(0, sys.argv[2])
from tests.unit.server import wire
for n in range(300):
    read, write = os.pipe()
    if os.fork() == 0:
        one = wire.RawClient(sys.argv[1], join=False)
        one.ask(wire.HELLO, group=b"no such", flags=0)
        os.write(write, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(read, 1)
    os.close(write); os.close(read)
print("ready", flush=True)
sys.stdin.read()
"""
    RawClient(s.path, join=False).ask(wire.HELLO, version=1, group=b"g")
    many = subprocess.Popen(
        [sys.executable, "-c", program, s.path, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert many.stdout
        assert many.stdout.readline() == "ready\n"
        assert len(unmanaged(s)) == 256
    finally:
        many.communicate()
