"""How batches of one size differ in time, where time is computed: in the simulator and in the backend `modelled`."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


def factor(variation: float, chance: Random) -> float:
    """Of the profile's time: lognormal with mean 1 and this standard deviation, a profile's ``variation``."""
    if variation <= 0:
        return 1.0
    sigma = sqrt(log(1 + variation**2))
    return exp(chance.gauss(-sigma * sigma / 2, sigma))
