"""Traffic whose rates change for minutes, for bench.replan and its live half."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin
from typing import TYPE_CHECKING

from gemlet.load import arrivals

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

LEAST_SLO_MS = 10.0
RESOLUTION_S = 0.5
LENGTH_S = 300.0  # what periods and steps are made for


@dataclass(frozen=True, slots=True)
class Traffic:
    """``models``: mean requests/s, swing, period in s, phase; ``steps``: model, from which second to which, times."""

    gpus: int
    models: dict[str, tuple[float, float, float, float]]
    steps: tuple[tuple[str, float, float, float], ...]

    def at(self, model: str, second: float) -> float:
        """Requests/s; ``second`` of LENGTH_S."""
        mean, swing, period, phase = self.models[model]
        factor = 1.0
        for name, begin, end, times in self.steps:
            if name == model and begin <= second < end:
                factor *= times
        return factor * mean * (1 + swing * sin(2 * pi * (second / period + phase)))

    def rates(self, seconds: float, times: float = 1.0) -> dict[str, arrivals.Steps]:
        """All of it within this many seconds, ``times`` as high."""
        moments = [RESOLUTION_S * step for step in range(round(seconds / RESOLUTION_S) + 1)]
        return {
            model: arrivals.trace([times * self.at(model, t * LENGTH_S / seconds) for t in moments], RESOLUTION_S)
            for model in self.models
        }


TRAFFIC = {
    "l4": Traffic(
        4,
        {
            "resnet50": (1200, 0.5, 120, 0.0),
            "vgg16": (350, 0.5, 90, 0.3),
            "bert": (500, 0.4, 150, 0.6),
            "mobilenet_v2": (2500, 0.6, 60, 0.5),
            "googlenet": (1200, 0.3, 200, 0.8),
        },
        (
            ("vgg16", 50, 110, 2.0), ("resnet50", 140, 180, 1.8), ("bert", 200, 240, 2.0),
            ("mobilenet_v2", 250, 280, 0.3),
        ),
    ),
    # One H200 behind a frontend on one core: most requests are small, and images (150 kB) are few.
    "h200": Traffic(
        1,
        {
            "densenet161": (250, 0.5, 120, 0.0),
            "vgg16": (300, 0.5, 90, 0.3),
            "resnet50": (500, 0.5, 150, 0.6),
            "bert": (1500, 0.5, 75, 0.5),
            "decoder": (1200, 0.3, 200, 0.8),
        },
        (("vgg16", 50, 110, 2.0), ("bert", 140, 180, 2.0), ("densenet161", 200, 240, 2.0), ("decoder", 250, 280, 0.3)),
    ),
}  # fmt: skip


def slos_of(known: Profiles, traffic: Traffic) -> dict[str, float]:
    """Milliseconds: gpulet's rule, twice a batch of 32 on the whole device."""
    return {m: max(LEAST_SLO_MS, round(2 * known.models[m].surface.latency(1.0, 32), 1)) for m in traffic.models}


def of(which: str, rate: arrivals.Steps) -> float:
    """The ``first``, ``mean`` or ``highest`` of its rates."""
    return {"first": rate.rates[0], "mean": sum(rate.rates) / len(rate.rates), "highest": max(rate.rates)}[which]
