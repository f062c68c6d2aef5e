"""Profiles of models that nobody profiled, from what their batches took. Pure: time comes from outside.

What is learned is of a model's files as they are, so it is kept by the key that executors know them by. Batches are
kept by the power of two below their rows and the share of the gpu-let; a class counts for the largest batch seen in
it, at the time that most of its batches kept, so a plan that rests on it promises too little rather than too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemlet.serve.profiles.profile import ModelProfile
from gemlet.serve.profiles.variation import Recent

if TYPE_CHECKING:
    from gemlet.serve.profiles.surface import Point

AFTER_S = 60.0  # of traffic, before a model is planned by it
BATCHES = 30  # at least, in that time
OF_A_CLASS = 5  # at least, that a class counts
KEPT = 64  # times of a class
QUANTILE = 0.75
FIRST_IGNORED = 1  # batches of a model at a share: warming up
LEAST_MS = 0.01


@dataclass(slots=True)
class _Class:
    rows: int = 0
    times: Recent = field(default_factory=lambda: Recent(KEPT))


@dataclass(slots=True)
class _Model:
    since: float
    batches: int = 0
    rows: int = 0
    warm: dict[float, int] = field(default_factory=dict)
    classes: dict[tuple[float, int], _Class] = field(default_factory=dict)


class Learned:
    """``hop_ms``: what of a batch's time is its way to the executor and back, which planners add themselves."""

    def __init__(self, hop_ms: float = 0.0) -> None:
        self._hop_ms = hop_ms
        self._models: dict[str, _Model] = {}

    def observe(self, key: str, share: float, rows: int, ms: float, now: float) -> None:
        """A batch of so many rows took so long on a gpu-let of that share. ``now``: seconds."""
        model = self._models.setdefault(key, _Model(now))
        seen = model.warm.get(share, 0)
        model.warm[share] = seen + 1
        if seen < FIRST_IGNORED:
            return
        model.batches += 1
        model.rows += rows
        one = model.classes.setdefault((share, rows.bit_length()), _Class())
        one.rows = max(one.rows, rows)
        one.times.add(ms)

    def rate(self, key: str, now: float) -> float:
        """Rows/s since it was first seen; 0 for what was not."""
        model = self._models.get(key)
        return model.rows / max(1.0, now - model.since) if model is not None else 0.0

    def profile(self, key: str, now: float, *, weights_mib: float = 0.0) -> ModelProfile | None:
        """None: there was not enough traffic yet."""
        model = self._models.get(key)
        if model is None or now - model.since < AFTER_S or model.batches < BATCHES:
            return None
        points: dict[tuple[float, int], float] = {}
        for (share, _), one in sorted(model.classes.items()):
            if len(one.times) >= OF_A_CLASS:
                points[share, one.rows] = max(LEAST_MS, one.times.quantile(QUANTILE) - self._hop_ms)
        if not points:
            return None
        anchors: tuple[Point, ...] = tuple((share, rows, ms) for (share, rows), ms in points.items())
        return ModelProfile(latency=anchors, weights_mib=weights_mib)

    def keep_only(self, keys: set[str]) -> None:
        """Forgets models that are not served any more."""
        for key in self._models.keys() - keys:
            del self._models[key]
