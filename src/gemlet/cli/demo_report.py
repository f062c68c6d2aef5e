"""What `gemlet demo` prints: the programs' progress while they run, and at the end what was promised and what was
measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gemlet.cli.demo_measurement import WINDOW_SECONDS, Trace, worst_error
from gemlet.config.quantities import format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE = 0.05  # of the device, for the share over the whole run
BAR_WIDTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """One group: promised and measured, as parts of the exclusive rate."""

    name: str
    min: float
    max: float
    share: float
    worst_1s_error: float

    @property
    def kept(self) -> bool:
        """Whether the promise was kept, within the tolerance."""
        return abs(self.share - self.min) <= TOLERANCE


class Progress:
    """The last second of each group: bars that stay in place on a terminal, one line each time elsewhere."""

    def __init__(self, promised: Mapping[str, float], rate: float) -> None:
        self._promised = promised
        self._rate = rate
        self._in_place = sys.stdout.isatty()
        self._shown = False
        self.interval_seconds = 0.25 if self._in_place else 2.0

    def show(self, traces: Mapping[str, Trace]) -> None:
        """Prints the shares of the last second."""
        shares = {name: traces[name].rate(last=WINDOW_SECONDS) / self._rate for name in self._promised}
        if not self._in_place:
            click.echo("  ".join(f"{name} {share:6.1%}" for name, share in shares.items()))
            return
        if self._shown:
            click.echo(f"\x1b[{len(shares)}F", nl=False)
        self._shown = True
        for name, share in shares.items():
            filled = min(BAR_WIDTH, round(share * BAR_WIDTH))
            bar = "━" * filled + " " * (BAR_WIDTH - filled)
            place = round(self._promised[name] * BAR_WIDTH)
            bar = f"{bar[:place]}|{bar[place:]}"
            click.echo(f"\x1b[K{name}  {bar} {share:6.1%} of {format_share(self._promised[name])}")


def results(traces: Mapping[str, Trace], promised: Mapping[str, float], rate: float) -> list[GroupResult]:
    """What each group got of ``rate``, from traces of the same time."""
    return [
        GroupResult(
            name=name,
            min=minimum,
            max=1.0,
            share=round(traces[name].rate() / rate, 4),
            worst_1s_error=round(worst_error(traces[name], rate, minimum), 4),
        )
        for name, minimum in promised.items()
    ]


def table(found: list[GroupResult]) -> str:
    """Promised, measured and the worst second, a line a group."""
    lines = [f"{'GROUP':<8}  {'PROMISED':>8}  {'MEASURED':>8}  WORST SECOND"]
    lines += [f"{r.name:<8}  {format_share(r.min):>8}  {r.share:>8.1%}  off by {r.worst_1s_error:.1%}" for r in found]
    lines.append(f"{'total':<8}  {'':>8}  {total(found):>8.1%}")
    return "\n".join(lines)


def total(found: list[GroupResult]) -> float:
    """All groups together, as a part of what one program alone completes."""
    return round(sum(result.share for result in found), 4)


def verdict(found: list[GroupResult], *, simulated: bool) -> str:
    """One sentence on what was shown."""
    where = "one simulated device" if simulated else "one GPU"
    missed = [result.name for result in found if not result.kept]
    if missed:
        return (
            f"{' and '.join(missed)} missed the promise by more than {TOLERANCE:.0%} of the device; "
            "does anything else use it, or this machine's processors?"
        )
    furthest = max(abs(result.share - result.min) for result in found)
    return (
        f"Three programs shared {where} as promised, none further off than {furthest:.1%} of it on average; "
        f"together they did {total(found):.1%} of the work one does alone."
    )
