"""What a group used, what it waited for, and what would have helped, from the recorded history. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.config.quantities import format_share, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gemlet.daemon.history_recorder import Recorded, RecordedSeries
    from gemlet.daemon.status import GroupLimits

SCHEMA = 1  # of `gemlet report -o json`
WORTH_SAYING = 0.02  # part of the time: less is noise of a second's moments
WORTH_CHANGING = 0.05
STEP = 0.05  # of a share that is recommended

# Why a client waited (`REASONS` of daemon/history_moment.py), as the end of "waited 3 s for".
FOR = {
    "shares": "its turn",
    "always": "turns that its policy or workload asks for",
    "both busy": "turns beside others that were busy all the time",
    "ahead": "others that were behind their shares",
    "behind": "its turn while it was behind its share",
    "slowed": "requests of class latency",
    "unverified": "turns until its speed alone was known",
    "memory": "its memory to come back to the device",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One group over the time in which it had programs.

    ``seconds``: that time; ``device_s``: device time used, of all devices; ``share``: one over the other;
    ``memory_peak``: most bytes on all devices in any interval; ``waits``: seconds by reason; ``advice``: what would
    have helped, None if nothing made it wait for long. ``schema`` numbers the shape.
    """

    group: str
    simulated: bool
    seconds: float
    device_s: float
    share: float
    memory_peak: int
    moved_bytes: int
    throttled_s: float
    waits: dict[str, float]
    min: float | None
    max: float | None
    advice: str | None = None
    schema: int = SCHEMA


def left_for(group: str, promised: Iterable[GroupLimits]) -> float:
    """The largest minimum that ``group`` may have beside the others, by the daemon's own rule."""
    others = [other for other in promised if other.name != group]
    device = next((each.device for each in promised if each.name == group), None)
    return max(0.0, 1 - sum(o.min for o in others if device is None or o.device in (None, device)))


def report(recorded: Recorded, group: str, *, free: float = 1.0) -> Report | None:
    """The report of ``group``; None if it had no programs in the recorded time.

    ``free``: the largest minimum that it may have now.
    """
    series = [each for each in recorded.series if each.group == group]
    places = [place for place in range(len(recorded.time)) if any(_active(each, place) for each in series)]
    if not places:
        return None
    step = recorded.step_s

    def total(name: str) -> float:
        return step * sum(_value(each, name, place) for each in series for place in places)

    seconds = float(step * len(places))
    device_s = total("share")
    reasons = {name for each in series for name in each.values if name.startswith("waits ")}
    found = Report(
        group=group,
        simulated=recorded.simulated,
        seconds=seconds,
        device_s=round(device_s, 3),
        share=round(device_s / seconds, 4),
        memory_peak=round(max(sum(_value(each, "memory", place) for each in series) for place in places)),
        moved_bytes=round(total("moved")),
        throttled_s=round(total("throttled"), 3),
        waits={name.removeprefix("waits "): round(total(name), 3) for name in sorted(reasons) if total(name) > 0},
        min=_last(series, "min"),
        max=_last(series, "max"),
    )
    has_requests = _last(series, "requests") is not None  # only those of class `latency` are counted
    return msgspec.structs.replace(found, advice=_advice(found, free, has_requests=has_requests))


def line(found: Report) -> str:
    """One line for people, without the name of the group."""
    parts = [
        f"used {found.device_s:.1f} s of device time in {found.seconds:.0f} s ({format_share(round(found.share, 2))})"
        f", up to {format_size(found.memory_peak)}"
    ]
    waited = sorted(found.waits.items(), key=lambda each: -each[1])
    said = [f"{seconds:.1f} s for {FOR.get(reason, reason)}" for reason, seconds in waited if _long(found, seconds)][:2]
    if _long(found, found.throttled_s):
        said.insert(0, f"{found.throttled_s:.1f} s at its maximum")
    parts.append(f"waited {' and '.join(said)}" if said else "waited for nothing")
    return "; ".join(parts) + (f"; {found.advice}" if found.advice else "")


def _long(found: Report, seconds: float) -> bool:
    return seconds >= WORTH_SAYING * found.seconds


def _advice(found: Report, free: float, *, has_requests: bool) -> str | None:
    """What would have shortened the longest wait. ``has_requests``: it is of class `latency` already."""
    turns = sum(seconds for reason, seconds in found.waits.items() if reason != "memory")
    causes: list[tuple[float, Callable[[], str | None]]] = [
        (
            found.throttled_s,
            lambda: (
                f"a larger maximum would have helped: --max {format_share(_up(found.max, found.throttled_s, found))}"
            ),
        ),
        (found.waits.get("memory", 0.0), lambda: "more --resident, or fewer programs at a time, would have helped"),
        (turns, lambda: _of_turns(found, turns, free, has_requests=has_requests)),
    ]
    seconds, advice = max(causes, key=lambda cause: cause[0])
    return advice() if seconds >= WORTH_CHANGING * found.seconds else None


def _of_turns(found: Report, waited: float, free: float, *, has_requests: bool) -> str | None:
    least, most = found.min or 0.0, 1.0 if found.max is None else found.max
    if least >= 1:
        return None
    latency = "" if has_requests else "or --priority latency for short requests"
    wanted = min(_up(max(found.share, least), waited, found), most)
    possible = int(free * 100 + 1e-6) / 100
    if least >= most:
        helped = "a larger minimum and maximum would have helped"
    elif wanted <= possible:
        helped = f"a larger minimum, up to --min {format_share(wanted)}, would have helped"
    elif possible > least:
        up_to = f"up to --min {format_share(possible)}"
        helped = f"a larger minimum, {up_to}, would have helped, no more: other groups hold the rest"
    else:
        helped = "a larger minimum would have helped, but other groups hold the rest: lower theirs with `gemlet set`"
        return f"{helped}, choose another --device, {latency}" if latency else f"{helped}, or choose another --device"
    return f"{helped}; {latency}" if latency else helped


def _up(share: float | None, waited: float, found: Report) -> float:
    wanted = (share or 0.0) + waited / found.seconds
    return min(1.0, max(STEP, round(wanted / STEP) * STEP))


def _active(series: RecordedSeries, place: int) -> bool:
    return _value(series, "clients", place) > 0 or _value(series, "share", place) > 0


def _value(series: RecordedSeries, name: str, place: int) -> float:
    values = series.values.get(name)
    return (values[place] or 0.0) if values else 0.0


def _last(series: list[RecordedSeries], name: str) -> float | None:
    known = [value for each in series for value in each.values.get(name, []) if value is not None]
    return known[-1] if known else None
