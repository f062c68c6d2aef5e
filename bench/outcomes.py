"""What runs of `gemlet load -o json` come to: requests lost and refused, bad seconds, absences. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GOAL = 0.99  # of a second's requests in time, or the second is bad
LATEST_S = 5.0  # after a step: bad seconds that begin later have another reason
NO_REPLY = ("no reply", "connection", "cannot connect", "not HTTP", "other", "UNKNOWN", "CANCELLED")
OF_TRANSPORT = ("connect", "socket", "goaway", "transport", "broken pipe", "stream removed", "rst_stream")


def is_lost(reason: str) -> bool:
    """Whether nobody answered: the words are the client's, not the server's."""
    if reason.startswith("UNAVAILABLE"):  # gRPC has one word for a server that refuses and for one that is gone
        return any(word in reason.lower() for word in OF_TRANSPORT)
    return reason.startswith(NO_REPLY)


@dataclass(frozen=True, slots=True)
class Count:
    """Requests of a run, all of its models or one. refused: the server said no; lost: nobody said anything."""

    requests: int
    answered: int
    in_time: int
    refused: int
    lost: int
    reasons: Mapping[str, int]

    @property
    def unaccounted(self) -> int:
        """Not 0 if the generator itself cannot count."""
        return self.requests - self.answered - self.refused - self.lost

    @property
    def attainment(self) -> float:
        return self.in_time / self.requests if self.requests else 1.0


def count(run: Mapping[str, Any], model: str | None = None) -> Count:
    chosen = [each for name, each in run["models"].items() if model in {None, name}]
    reasons: dict[str, int] = {}
    for each in chosen:
        for reason, number in each["refused"].items():
            reasons[reason] = reasons.get(reason, 0) + number
    lost = sum(number for reason, number in reasons.items() if is_lost(reason))
    return Count(
        sum(each["requests"] for each in chosen),
        sum(each["answered"] for each in chosen),
        sum(each["in_time"] for each in chosen),
        sum(reasons.values()) - lost,
        lost,
        reasons,
    )


def merged(intervals: Sequence[Mapping[str, Any]], several: int) -> list[dict[str, Any]]:
    """Intervals that are ``several`` times as long; p99_ms is the highest of theirs."""
    found = []
    for at in range(0, len(intervals), several):
        part = intervals[at : at + several]
        counts = {key: sum(each[key] for each in part) for key in ("requests", "answered", "in_time")}
        slowest = max((each["p99_ms"] for each in part if each["p99_ms"] is not None), default=None)
        found.append({"at": part[0]["at"], **counts, "highest_p99_ms": slowest})
    return found


@dataclass(frozen=True, slots=True)
class Spell:
    """Intervals in a row, seconds of the run, of which none was good. late: requests that were not in time."""

    begin: float
    end: float
    requests: int
    late: int


def spells(intervals: Sequence[Mapping[str, Any]], every_s: float, goal: float = GOAL) -> list[Spell]:
    """Where fewer than ``goal`` were in time. Intervals without requests are as those before them."""
    found: list[Spell] = []
    bad = False
    for each in intervals:
        at, requests, late = each["at"], each["requests"], each["requests"] - each["in_time"]
        was, bad = bad, late > (1 - goal) * requests + 1e-9 if requests else bad
        if bad and was:
            last = found.pop()
            found.append(Spell(last.begin, at + every_s, last.requests + requests, last.late + late))
        elif bad:
            found.append(Spell(at, at + every_s, requests, late))
    return found


def silences(intervals: Sequence[Mapping[str, Any]], every_s: float) -> list[Spell]:
    """Where requests were due and none of them was answered, in time or not."""
    plain = [{"at": i["at"], "requests": i["requests"], "in_time": int(i["answered"] > 0)} for i in intervals]
    return spells([each | {"in_time": each["in_time"] and each["requests"]} for each in plain], every_s, 1e-6)


def reaction(found: Sequence[Spell], step: float, latest_s: float = LATEST_S) -> float:
    """Seconds from a step of the rate to the end of the bad spell that it began; 0 if it began none."""
    begun = [spell for spell in found if spell.end > step and spell.begin < step + latest_s]
    return max((spell.end - step for spell in begun), default=0.0)


def back_after(
    intervals: Sequence[Mapping[str, Any]], every_s: float, killed: float, goal: float = 0.9, steady_s: float = 1.0
) -> float | None:
    """Seconds from a death to the first moment from which on it is good again for ``steady_s``: 0 if nobody noticed.

    Good: ``goal`` of the requests in time. None: that moment did not come.
    """
    after = [each for each in intervals if each["at"] + every_s > killed]
    since = killed  # the last bad interval ended then
    for each in after:
        if each["at"] >= since + steady_s - 1e-9:
            return since - killed
        if spells([each], every_s, goal):
            since = each["at"] + every_s
    whole = bool(after) and after[-1]["at"] + every_s >= since + steady_s - 1e-9
    return since - killed if whole else None
