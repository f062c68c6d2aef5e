"""What moved between device and host while programs ran, and when. Pure but for `Watch`, which looks at a server."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.machine import Sharing

GIB = 1 << 30
APART = 0.1  # seconds without a byte on a GPU: what comes then is another hand-over


@dataclass(frozen=True)
class Step:
    """Bytes that one client moved between two looks, at ``since`` and ``at``, in seconds."""

    since: float
    at: float
    out: int
    into: int  # the device
    dropped: int = 0  # left the device without a copy


@dataclass(frozen=True)
class HandOver:
    """Bytes that moved without a pause, of all clients, and how long it took each way, in seconds."""

    begin: float
    end: float
    out: int
    into: int
    out_seconds: float
    into_seconds: float

    @property
    def rate(self) -> float:
        """GB/s, both ways together."""
        return (self.out + self.into) / (self.end - self.begin) / 1e9

    def as_dict(self) -> dict[str, object]:
        return {
            "begin_s": round(self.begin, 3), "out_gib": round(self.out / GIB, 3), "in_gib": round(self.into / GIB, 3),
            "out_ms": round(self.out_seconds * 1e3, 1), "in_ms": round(self.into_seconds * 1e3, 1),
        }  # fmt: skip


def hand_overs(steps: Iterable[Step], apart: float = APART) -> list[HandOver]:
    """Steps of all clients as hand-overs, in order of time. ``apart``: seconds without a byte between two."""
    together: list[list[Step]] = []
    end = 0.0
    for step in sorted((s for s in steps if s.out or s.into), key=lambda s: s.since):
        if not together or step.since > end + apart:
            together.append([])
            end = step.at
        together[-1].append(step)
        end = max(end, step.at)
    return [_hand_over(part) for part in together]


def _hand_over(steps: Sequence[Step]) -> HandOver:
    def seconds(way: list[Step]) -> float:
        return max(s.at for s in way) - min(s.since for s in way) if way else 0.0

    return HandOver(
        begin=min(s.since for s in steps),
        end=max(s.at for s in steps),
        out=sum(s.out for s in steps),
        into=sum(s.into for s in steps),
        out_seconds=seconds([s for s in steps if s.out]),
        into_seconds=seconds([s for s in steps if s.into]),
    )


@dataclass
class Moved:
    """All that one client moved."""

    out: int = 0
    into: int = 0
    dropped: int = 0
    steps: list[Step] = field(default_factory=list)
    came: list[float] = field(default_factory=list)  # when all of its memory was there again, in seconds
    _here: bool = True

    def look(self, movable: dict[str, Any], since: float, at: float) -> None:
        """``movable``: of the server's snapshot ``at`` that time; the one before was ``since``. Both in seconds."""
        out, into = movable["moved_out"] - self.out, movable["moved_in"] - self.into
        dropped = movable["dropped"] - self.dropped
        if out or into or dropped:
            self.steps.append(Step(since, at, out, into, dropped))
        self.out, self.into, self.dropped = movable["moved_out"], movable["moved_in"], movable["dropped"]
        # Not when something came in: one that leaves brings back what it moved out beyond need.
        if movable["here"] and not self._here:
            self.came.append(at)
        self._here = movable["here"]


class Watch:
    """Follows the memory of a server's clients until they are gone. ``every``: seconds between two looks."""

    def __init__(self, sharing: Sharing, every: float = 0.002, apart: float = APART) -> None:
        self.clients: dict[tuple[str, int], Moved] = {}  # by (group, id)
        self._server = sharing.server
        self._every = every
        self._apart = apart
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._began = time.monotonic()

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        before = 0.0
        while not self._stop.wait(self._every):
            devices = self._server.snapshot()["devices"]
            now = time.monotonic() - self._began
            for device in devices:
                for group in device["groups"]:
                    for client in group["clients"]:
                        if client["movable"] is not None:
                            moved = self.clients.setdefault((group["name"], client["id"]), Moved())
                            moved.look(client["movable"], before, now)
            before = now

    def of(self, group: str) -> Moved:
        """The one client of a group. Raises LookupError if it had none with memory that can move."""
        for (name, _), moved in self.clients.items():
            if name == group:
                return moved
        raise LookupError(f"no program of {group} had memory that can move")

    @property
    def bytes(self) -> int:
        """Both ways, of all clients."""
        return sum(m.out + m.into for m in self.clients.values())

    def after(self, since_ns: int) -> Moved:
        """What all clients moved from then on (ns of CLOCK_MONOTONIC)."""
        since = since_ns / 1e9 - self._began
        steps = [s for moved in self.clients.values() for s in moved.steps if s.since >= since]
        return Moved(sum(s.out for s in steps), sum(s.into for s in steps), sum(s.dropped for s in steps), steps)

    def comings(self, group: str, since_ns: int) -> list[float]:
        """When the one client of a group had come back, in s after then (ns of CLOCK_MONOTONIC)."""
        since = since_ns / 1e9 - self._began
        return [at - since for at in self.of(group).came if at > since]

    @property
    def hand_overs(self) -> list[HandOver]:
        return hand_overs((step for moved in self.clients.values() for step in moved.steps), self._apart)

    def large(self, least: int) -> list[HandOver]:
        """Those of that many bytes, both ways together: they say something about a rate."""
        return [h for h in self.hand_overs if h.out + h.into >= least]
