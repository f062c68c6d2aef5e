"""What `gemlet explain` says of memory that can move."""

from __future__ import annotations

import msgspec

from gemlet.daemon.explain import _swap
from gemlet.daemon.status import ClientStatus, SwapStatus

GIB = 1 << 30


def client(**swap: object) -> ClientStatus:
    known = {"resident": 2 * GIB, "swapped": GIB, "moved_out": 5 * GIB, "moved_in": 4 * GIB, "dropped": 0}
    memory = SwapStatus(**{**known, "handover_s": 0.25, "reason": "", **swap})  # type: ignore[arg-type]
    return ClientStatus(
        pid=1, uid=0, command="train", state="runs", memory=3 * GIB, unledgered=0, launches=0, contexts=1, seconds=1.0,
        swap=memory,
    )  # fmt: skip


def test_where_it_is_and_what_moved() -> None:
    (line,) = _swap(client())
    assert line == (
        "  train (1): 2 GiB of what can move is on the device, 1 GiB is not; 5 GiB went to the host so far, "
        "4 GiB came back, the last time within 0.25 s"
    )


def test_what_left_without_a_copy_and_what_cannot_leave() -> None:
    first, dropped, fixed, why = _swap(msgspec.structs.replace(client(dropped=3 * GIB, reason="waits"), memory=4 * GIB))
    assert "2 GiB of what can move" in first
    assert "3 GiB left without a copy" in dropped
    assert "1 GiB stay on the device" in fixed
    assert why.endswith("waits")


def test_nothing_is_said_of_memory_that_cannot_move() -> None:
    assert _swap(msgspec.structs.replace(client(), swap=None)) == []
