"""Shares, waits, latencies and the worst second of a simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gemlet.config.quantities import MILLISECOND, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.simulate.engine import Outcome

BIN = 10 * MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Shares are fractions of the time simulated, times are milliseconds; None where there is nothing to measure.

    used: device time worked. charged: device time the arbiter charged. wanted: time with work or waiting.
    shortfall: how far below its target it was in the worst second of those throughout which it wanted.
    peak: its share of the second in which it used most. speed: work against what its programs did alone on the same
    device, slowest: the same in the worst second of those in which they did anything alone.
    """

    name: str
    used: float
    charged: float
    wanted: float
    shortfall: float | None
    peak: float
    grants: int
    wait_p50: float | None
    wait_max: float | None
    jobs: int
    latency_p50: float | None
    latency_p99: float | None
    speed: float | None
    slowest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One simulation. ``busy`` is the share of time in which the device worked."""

    simulated: bool
    policy: str
    seconds: float
    busy: float
    handovers: int
    groups: tuple[GroupReport, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"schema": 1} | asdict(self)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The value at ``q`` (0..1) of the sorted values; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def windows(bins: Sequence[int]) -> list[int]:
    """Sums over every second that starts with a bin."""
    width = SECOND // BIN
    return [sum(bins[start : start + width]) for start in range(max(1, len(bins) - width + 1))]


def shortfall(used: Sequence[int], wanted: Sequence[int], targets: Sequence[float]) -> float | None:
    """Largest targeted minus used share over all seconds throughout which the group wanted; None without any."""
    aims = windows([round(target * BIN) for target in targets])
    below = [
        (aim - use) / SECOND
        for use, want, aim in zip(windows(used), windows(wanted), aims, strict=False)
        if want >= 0.99 * SECOND
    ]
    return max(0.0, *below) if below and any(targets) else None


def speeds(work: Sequence[float], alone: Sequence[float]) -> tuple[float | None, float | None]:
    """Work against work alone, in all and in the worst of the seconds; both in bins."""
    if sum(alone) <= 0:
        return None, None
    width = SECOND // BIN
    starts = range(0, max(1, len(alone) - width + 1), width)
    seconds = [(sum(work[start : start + width]), sum(alone[start : start + width])) for start in starts]
    return sum(work) / sum(alone), min((did / would for did, would in seconds if would > 0), default=None)


def summarize(outcome: Outcome, policy: str, alone: Sequence[Outcome] = ()) -> Report:
    """The numbers people ask for. ``alone``: each client with the device to itself, in their order."""
    groups = []
    for name in dict.fromkeys(client.group for client in outcome.clients):
        members = {client.number: client for client in outcome.clients if client.group == name}
        used = [sum(amounts) for amounts in zip(*(client.work.values for client in members.values()), strict=True)]
        wanted = [sum(amounts) for amounts in zip(*(client.wanted.values for client in members.values()), strict=True)]
        would = [alone[number].clients[number].work.values for number in members] if alone else [[0.0] * len(used)]
        speed, slowest = speeds(used, [sum(amounts) for amounts in zip(*would, strict=True)])
        targets = [sample.get(name, 0.0) for _, sample in outcome.targets]
        waits = [wait / MILLISECOND for client in members.values() for wait in client.waits]
        latencies = [latency / MILLISECOND for client in members.values() for latency in client.program.latencies]
        groups.append(
            GroupReport(
                name=name,
                used=sum(used) / outcome.duration,
                charged=outcome.usage[name] / outcome.duration,
                wanted=sum(min(w, BIN) for w in wanted) / outcome.duration,
                shortfall=shortfall(used, [min(w, BIN) for w in wanted], targets),
                peak=max(windows(used)) / SECOND,
                grants=len(waits),
                wait_p50=percentile(waits, 0.5),
                wait_max=percentile(waits, 1.0),
                jobs=len(latencies),
                latency_p50=percentile(latencies, 0.5),
                latency_p99=percentile(latencies, 0.99),
                speed=speed,
                slowest=slowest,
            )
        )
    return Report(
        simulated=True,
        policy=policy,
        seconds=outcome.duration / SECOND,
        busy=sum(group.used for group in groups),
        handovers=outcome.handovers,
        groups=tuple(groups),
    )
