"""When requests come: a rate over time, and how regular the gaps are. The loop is open: no request waits for a reply.

Gaps of unit mean come from a distribution (uniform: all equal, poisson: exponential, gamma: with a chosen coefficient
of variation) and are stretched by the rate: a request comes when the integral of the rate has grown by the next gap. So
every distribution works with every rate, and arrivals follow a changing rate exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import cos, inf, isfinite, pi
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

Spread = Literal["uniform", "poisson", "gamma"]
GLET_STEP_S = 20.0  # glet's flux files change the rate every twenty seconds


class Rate(Protocol):
    """Requests/s over time."""

    def at(self, second: float) -> float:
        """The rate then."""
        ...

    def after(self, second: float, amount: float) -> float:
        """The first time at which ``amount`` more requests have come than at ``second``; infinite if never."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """Constant between ``starts`` (seconds, the first 0, ascending); the last rate holds for ever."""

    starts: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.rates) or self.starts[0] != 0:
            raise ValueError("a rate needs steps, the first at 0 s")
        if any(a >= b for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise ValueError("the steps of a rate must be in order of time")
        _check(self.rates)

    def at(self, second: float) -> float:
        return self.rates[self._place(second)]

    def _place(self, second: float) -> int:
        return max(0, bisect_right(self.starts, second) - 1)

    def after(self, second: float, amount: float) -> float:
        for place in range(self._place(second), len(self.starts)):
            end = self.starts[place + 1] if place + 1 < len(self.starts) else inf
            rate = self.rates[place]
            if rate * (end - second) >= amount and rate > 0:
                return second + amount / rate
            if end == inf:
                break
            amount -= rate * (end - second)
            second = end
        return inf


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """mean * (1 + swing * sin(2 pi t / period)); swing in 0..1, period in seconds."""

    mean: float
    swing: float
    period: float

    def __post_init__(self) -> None:
        _check((self.mean,))
        if not 0 <= self.swing <= 1 or not self.period > 0:
            raise ValueError(f"a sinusoid of swing {self.swing:g} and period {self.period:g} s is not valid")

    def _sum(self, second: float) -> float:
        wave = self.swing * self.period / (2 * pi) * (1 - cos(2 * pi * second / self.period))
        return self.mean * (second + wave)

    def at(self, second: float) -> float:
        return self.mean * (1 + self.swing * cos(2 * pi * second / self.period - pi / 2))

    def after(self, second: float, amount: float) -> float:
        if self.mean == 0:
            return inf
        target = self._sum(second) + amount
        low, high = second, second + amount / self.mean + self.period
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._sum(middle) < target else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another rate, ``times`` as high at every moment."""

    of: Rate
    times: float

    def at(self, second: float) -> float:
        return self.of.at(second) * self.times

    def after(self, second: float, amount: float) -> float:
        return self.of.after(second, amount / self.times) if self.times > 0 else inf


def constant(rate: float) -> Steps:
    return Steps((0.0,), (rate,))


def trace(rates: Sequence[float], step_s: float = GLET_STEP_S) -> Steps:
    """One rate for each ``step_s`` seconds."""
    if not step_s > 0:
        raise ValueError(f"steps of {step_s:g} s")
    return Steps(tuple(step_s * number for number in range(len(rates))), tuple(rates))


def gaps(spread: Spread, variation: float, chance: random.Random) -> Callable[[], float]:
    """Draws gaps of mean 1. ``variation``: of gamma only."""
    if spread == "uniform":
        return lambda: 1.0
    if spread == "poisson":
        return lambda: chance.expovariate(1.0)
    if not isfinite(variation) or variation <= 0:
        raise ValueError(f"a coefficient of variation of {variation:g}")
    shape = 1 / variation**2
    return lambda: chance.gammavariate(shape, 1 / shape)


def times(rate: Rate, draw: Callable[[], float], until: float) -> Iterator[float]:
    """Arrival times in seconds, ascending, below ``until``."""
    now = 0.0
    while True:
        now = rate.after(now, draw())
        if now >= until:
            return
        yield now


def parse_flux(text: str, step_s: float = GLET_STEP_S) -> Steps:
    """glet's flux format: one rate a line. Raises ValueError with the line."""
    rates = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            rates.append(_number(line, number))
    return trace(rates, step_s)


def parse_csv(text: str) -> dict[str, Steps]:
    """A CSV of rates: ``second,model-a,model-b`` in the first line, then one line a step. Raises ValueError."""
    lines = [(number, line.split(",")) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise ValueError("expected a first line such as second,resnet50,bert and a line for each step")
    header = [cell.strip() for cell in lines[0][1]]
    columns: list[list[float]] = [[] for _ in header]
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise ValueError(f"line {number}: {len(cells)} cells under {len(header)} columns")
        for column, cell in zip(columns, cells, strict=True):
            column.append(_number(cell, number))
    starts = tuple(columns[0])
    return {name: Steps(starts, tuple(rates)) for name, rates in zip(header[1:], columns[1:], strict=True)}


def _number(text: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"line {line}: {text.strip()!r} is not a number") from None
    if not isfinite(value) or value < 0:
        raise ValueError(f"line {line}: {text.strip()} is not a rate")
    return value


def _check(rates: Sequence[float]) -> None:
    for rate in rates:
        if not isfinite(rate) or rate < 0:
            raise ValueError(f"the rate is {rate:g} requests/s: expected 0 or more")
