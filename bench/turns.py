"""The arbiter's trace, read as turns; what in a stretch of time was unlike the rest. Pure.

A step of the trace is (time ns, group, client, what, value), as ``Sharing.trace`` gives it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Step = tuple[int, str, int, str, int]
LATE_NS = 1_000_000  # what is this much later than it usually is, is unusual


@dataclass
class Turn:
    """From a grant (or from taking a parked token) until the work has drained. Times in ns; None: not seen."""

    group: str
    client: int
    granted: int
    wanted: int | None = None
    deadline: int | None = None
    revoked: int | None = None
    stopped: int | None = None
    tail: int = 0  # what the holder said was still in flight when it stopped
    drained: int | None = None
    wants_again: int | None = None
    superseded: int | None = None  # by the client's next turn, where the trace has no stop of this one

    def end(self, otherwise: int) -> int:
        """When it no longer held the token; ``otherwise`` if it still does."""
        known = self.stopped if self.stopped is not None else self.superseded
        return otherwise if known is None else known

    @property
    def length(self) -> int | None:
        return None if self.stopped is None else self.stopped - self.granted

    @property
    def drain(self) -> int | None:
        return None if self.stopped is None or self.drained is None else self.drained - self.stopped

    @property
    def pause(self) -> int | None:
        """From the stop until it asked again."""
        return None if self.stopped is None or self.wants_again is None else self.wants_again - self.stopped

    @property
    def overrun(self) -> int | None:
        if self.stopped is None or self.deadline is None or self.deadline < 0:
            return None
        return self.stopped - self.deadline


def turns(trace: Iterable[Step]) -> list[Turn]:
    """In order of their grants."""
    found: list[Turn] = []
    last: dict[int, Turn] = {}
    wanted: dict[int, int] = {}
    for at, group, client, what, value in trace:
        turn = last.get(client)
        if what in {"grant", "took"}:
            if turn and turn.stopped is None:
                turn.superseded = at
            deadline = value if what == "grant" and value > 0 else None
            last[client] = Turn(group, client, at, wanted.pop(client, None), deadline)
            found.append(last[client])
        elif what == "request":
            wanted[client] = at
            if turn and turn.stopped is not None and turn.wants_again is None:
                turn.wants_again = at
        elif turn is None or (turn.stopped is not None and what != "drained"):
            continue
        elif what == "update" and value > 0:
            turn.deadline = value
        elif what == "revoke":
            turn.revoked = at
        elif what.startswith("stopped"):
            turn.stopped, turn.tail = at, value
        elif what == "drained" and turn.drained is None:
            turn.drained = value
    return found


def held(found: Sequence[Turn], group: str, begin: int, end: int) -> int:
    """ns of [begin, end) that the group held the token."""
    return sum(
        max(0, min(t.end(end), end) - max(t.granted, begin)) for t in found if t.group == group and t.granted < end
    )


def nobody(found: Sequence[Turn], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(from, length) of the times in [begin, end) in which nobody held the token, in ns."""
    free = begin
    for t in found:
        if t.granted >= end:
            break
        if t.granted > free:
            yield free, t.granted - free
        free = max(free, t.end(end))
    if free < end:
        yield free, end - free


@dataclass(frozen=True)
class Unusual:
    at: int
    by: int  # ns more than usual
    text: str


@dataclass
class Usual:
    """Medians over a whole run, by group."""

    medians: dict[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Sequence[Turn]) -> Usual:
        usual = cls()
        for group in {t.group for t in found}:
            for what in ("drain", "pause", "overrun", "length"):
                values = [v for t in found if t.group == group and (v := getattr(t, what)) is not None]
                if values:
                    usual.medians[group, what] = statistics.median(values)
        return usual


TEMPLATES = {
    "drain": "drained {took:.2f} ms after its stop",
    "pause": "asked again {took:.2f} ms after its stop",
    "overrun": "stopped {took:.2f} ms after its deadline",
}


def unusual(found: Sequence[Turn], begin: int, end: int, usual: Usual | None = None) -> list[Unusual]:
    """What in [begin, end) was `LATE_NS` or more beyond the medians of the run, in order of time."""
    usual = usual or Usual.of(found)
    seen = []
    for t in found:
        if t.stopped is None or not begin <= t.stopped < end:
            continue
        for what, template in TEMPLATES.items():
            value, median = getattr(t, what), usual.medians.get((t.group, what))
            if value is None or median is None or value - median < LATE_NS:
                continue
            text = f"{t.group} {template.format(took=value / 1e6)} (median {median / 1e6:.2f})"
            seen.append(Unusual(t.stopped, int(value - median), text))
        if t.revoked is not None:
            seen.append(Unusual(t.revoked, 0, f"{t.group} was told to stop before its deadline"))
    seen += [
        Unusual(at, length, f"nobody held the token for {length / 1e6:.2f} ms")
        for at, length in nobody(found, begin, end)
        if length >= LATE_NS
    ]
    return sorted(seen, key=lambda u: u.at)
