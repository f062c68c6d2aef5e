"""Clients that speak rubbish: dropped, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served


def refused(path: str, packet: bytes) -> bool:
    c = RawClient(path, join=False)
    c.socket.send(packet)
    try:
        return c.receive().status != wire.OK
    except (ConnectionError, TimeoutError):
        return True


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"\0" * wire.MESSAGE.size,
        wire.pack(wire.HELLO, group=b"g")[:-1],
        wire.pack(wire.HELLO, group=b"g") + b"!",
        wire.pack(wire.HELLO, group=b""),
        wire.pack(wire.HELLO, group=b"\xff\xfe"),
        wire.pack(wire.HELLO, group=b"cut \xe2\x80"),
        wire.pack(wire.HELLO, group=b"\xed\xa0\x80"),
        wire.pack(wire.HELLO, group=b"\xc0\xaf"),
        wire.pack(wire.HELLO, group=b"\xe0\x80\xaf"),
        wire.pack(wire.HELLO, group=b"\xf4\x90\x80\x80"),
        wire.pack(wire.HELLO, version=99, group=b"g"),
        wire.pack(wire.REQUEST),
        wire.pack(999),
    ],
    ids=["short", "zeros", "truncated", "too-long", "no-group", "not UTF-8", "cut off", "surrogate",
         "two bytes for one", "three bytes for one", "beyond Unicode", "version", "want-first", "unknown-type"],
)  # fmt: skip
def test_rubbish_before_joining(serve: Callable[..., Served], packet: bytes) -> None:
    assert refused(serve().path, packet)


@pytest.mark.parametrize(
    "name", ["\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
)
def test_a_name_in_any_script(serve: Callable[..., Served], name: str) -> None:
    assert not refused(serve().path, wire.pack(wire.HELLO, group=name.encode() * 2, flags=wire.CREATE_GROUP))


def test_events_of_one_do_not_push_out_those_of_others(serve: Callable[..., Served], tmp_path: Path) -> None:
    s = serve()
    s.server.set_group("rude")
    s.server.listen(str(tmp_path / "rude"), group="rude")
    s.server.take_events()
    RawClient(s.path, "polite")
    rude = RawClient(str(tmp_path / "rude")).attach()
    for _ in range(20_000):
        rude.send(wire.REFUSED, value=1)
    rude.ask(wire.ATTACH, uuid=bytes(16))  # by its answer all others have been read
    RawClient(s.path, "later")
    found = s.server.take_events()
    assert {"polite", "later"} <= {event["group"] for event in found if event["kind"] == "join"}
    assert 100 < len(found) < 1000
    rude.send(wire.REFUSED, value=1)
    wire.eventually(s.server.take_events)


def test_names_of_other_users_and_fixed_sockets(serve: Callable[..., Served], tmp_path: Path) -> None:
    s = serve()
    s.server.set_group("root-only", users=[12345])
    if os.getuid() != 0:  # root may join anything
        assert refused(s.path, wire.pack(wire.HELLO, group=b"root-only"))
    s.server.set_group("fixed")
    s.server.listen(str(tmp_path / "fixed"), group="fixed")
    c = RawClient(str(tmp_path / "fixed"), "something-else").attach()
    assert [k for k, g in s.groups().items() if g["clients"]] == ["fixed"]
    c.close()


def test_a_flood_of_nonsense_does_not_disturb_a_polite_client(serve: Callable[..., Served]) -> None:
    s = serve()
    polite = RawClient(s.path, "polite").attach()
    dice = random.Random(7)
    for _ in range(60):
        rude = RawClient(s.path, "rude").attach() if dice.random() < 0.7 else RawClient(s.path, join=False)
        rude.socket.setblocking(False)
        for _ in range(dice.randrange(1, 60)):
            kind = dice.choice([*range(1, 11), dice.randrange(65536)])
            fields = {
                "device": dice.choice([0, 0, 0, 1, 2**32 - 1]),
                "epoch": dice.choice([0, 1, 2, dice.randrange(2**29)]),
                "reason": dice.randrange(2**32),
                "flags": dice.randrange(2**32),
                "tail_ns": dice.choice([0, 2**64 - 1, dice.randrange(2**64)]),
                "time_ns": dice.choice([0, 2**64 - 1, time.monotonic_ns()]),
                "value": dice.choice([0, 1, 2**64 - 1]),
                "uuid": dice.randbytes(16) if dice.random() < 0.2 else bytes(16),
                "group": dice.randbytes(256),
            }
            packet = wire.MESSAGE.pack(
                *(wire.MESSAGE.unpack(wire.pack(kind))[:3]), fields["device"], fields["epoch"], 0, fields["reason"],
                0, 0, -1, fields["flags"], fields["time_ns"], fields["tail_ns"], fields["value"], fields["uuid"],
                fields["group"], b"",
            )  # fmt: skip
            if hasattr(rude, "page"):
                rude.page.put("token", dice.randrange(2**32), size=4)
            try:
                rude.socket.send(packet)
            except OSError:
                break
        rude.close()
    polite.send(wire.REQUEST)
    polite.await_state(wire.RUN)
    assert s.server.snapshot()["devices"]


@pytest.mark.parametrize("refuse_files", [True, False])
def test_descriptors_sent_by_a_client_are_not_kept(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files)
    before = len(list(Path("/proc/self/fd").iterdir()))
    r, w = os.pipe()
    for _ in range(50):
        c = RawClient(s.path)
        with contextlib.suppress(OSError):  # it is refused, or the end was faster
            socket.send_fds(c.socket, [wire.pack(wire.REQUEST)], [r, w])
        c.close()
    os.close(r), os.close(w)
    wire.eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 8)
