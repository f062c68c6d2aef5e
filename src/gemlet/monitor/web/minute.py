"""What became of each group's promises in the last minute, from what the daemon recorded. Pure.

A minimum counts while the group has work: the less of its minimum and of what the policy aimed at for it is owed. A
group that got less, and did not wait either, had no use for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = Sequence[float | None]

SECONDS = 60.0
POINTS = 120
NOTICEABLE = 0.03  # of the device: what is less is within the error of what is measured and of a turn's length
AWAITED = "waits "  # what a column of a reason to wait begins with


def judge(recorded: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each group on each device: what it `used` and was `owed` (shares of the device), how far it was `short`
    of its minimum and `over` its maximum (0.0 where that is not noticeable), and what part of the time it `waited`, by
    reason. ``recorded``: the document of `gemlet history -o json` with a value a second."""
    return [_row(one) for one in recorded["series"] if one["group"] is not None]


def _row(series: Mapping[str, Any]) -> dict[str, Any]:
    values: Mapping[str, Values] = series["values"]
    used = _mean(values.get("share", ()))
    due = zip(values.get("min", ()), values.get("target", ()), strict=False)
    owed = _mean([min(least, aim) for least, aim in due if least is not None and aim is not None])
    waited = {name.removeprefix(AWAITED): _mean(part) for name, part in values.items() if name.startswith(AWAITED)}
    most = max((each for each in values.get("max", ()) if each is not None), default=1.0)  # it may have changed
    short = min(owed - used, sum(waited.values()))
    over = used - most
    return {
        "device": series["device"],
        "group": series["group"],
        "used": used,
        "owed": owed,
        "short": short if short > NOTICEABLE else 0.0,
        "over": over if over > NOTICEABLE else 0.0,
        "waited": {reason: part for reason, part in waited.items() if part > 0},
        "throttled": _mean(values.get("throttled", ())),
    }


def _mean(values: Values) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0
