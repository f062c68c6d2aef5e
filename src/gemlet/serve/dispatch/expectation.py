"""Predicts how long a batch will take: from the profile, corrected by measurements; without a profile from measurements
alone.

The prediction is a median, so that a pause of the machine changes nothing, and nearly all batches keep within the
margin. The dispatcher drops requests that it expects to be late, and dropped requests are never measured, so an
estimate that was wrong once could be wrong for ever. When all waiting requests were dropped because of one, some of the
measurements behind it are therefore forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.profiles.kinds import ONE_KIND
from gemlet.serve.profiles.profile import ModelProfile
from gemlet.serve.profiles.variation import Recent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gemlet.serve.dispatch.gpu_lets import Assignment

Key = tuple[str, str, float]  # a model, the kind of device it runs on, and the SM share of its gpu-let
BATCHES = 16  # that what is expected rests on
MARGIN_BATCHES = 64  # that the margin rests on
MARGIN_QUANTILE = 0.95
FIRST_IGNORED = 1  # batches of a model at a share: warming up
MAX_CORRECTION = 4.0


class Expectation:
    """Milliseconds by (model, kind of device, SM share, rows). kinds: of devices by index, where there are several."""

    def __init__(self) -> None:
        self.kinds: Mapping[int, str] = {}
        self.observer: Callable[[Assignment, int, float], None] | None = None  # gets every batch, too
        self._profiles: dict[tuple[str, str], ModelProfile] = {}
        self._rows: dict[Key, list[float]] = {}
        self._ratios: dict[Key, Recent] = {}  # to the profile's time
        self._seen: dict[Key, dict[int, Recent]] = {}  # times by the number of bits of the rows
        self._excess: dict[Key, Recent] = {}
        self._ignored: dict[Key, int] = {}

    def know(self, model: str, profile: ModelProfile | Mapping[str, ModelProfile] | None) -> None:
        """From now on the model has this profile, or these by kind of device, or none; what was seen of it before is
        forgotten."""
        for table in (self._rows, self._ratios, self._seen, self._excess, self._ignored):
            for key in [key for key in table if key[0] == model]:
                del table[key]
        for known in [known for known in self._profiles if known[0] == model]:
            del self._profiles[known]
        if isinstance(profile, ModelProfile):
            self._profiles[model, ONE_KIND] = profile
        elif profile is not None:
            self._profiles |= {(model, kind): each for kind, each in profile.items()}

    def __call__(self, place: Assignment, rows: int) -> float:
        key = self._key(place)
        row = self._row(key)
        if not row:
            return self._learned(key, rows)
        ratios = self._ratios.get(key)
        return self._profiled(row, place, rows) * (ratios.quantile(0.5) if ratios else 1.0)

    def margin(self, place: Assignment) -> float:
        """By how many milliseconds 5 % of the last batches there were slower than expected, or more."""
        excess = self._excess.get(self._key(place))
        return max(0.0, excess.quantile(MARGIN_QUANTILE)) if excess else 0.0

    def observe(self, place: Assignment, rows: int, ms: float) -> None:
        """Takes note of how long a batch of this many rows took, from the dispatch to the answer."""
        if self.observer is not None:
            self.observer(place, rows, ms)
        key = self._key(place)
        ignored = self._ignored.setdefault(key, 0)
        if ignored < FIRST_IGNORED:
            self._ignored[key] += 1
            return
        row = self._row(key)
        size = rows.bit_length()
        seen = self._seen.setdefault(key, {})
        if row or size in seen:
            self._excess.setdefault(key, Recent(MARGIN_BATCHES)).add(ms - self(place, rows))
        if not row:
            seen.setdefault(size, Recent(BATCHES)).add(ms)
            return
        expected = self._profiled(row, place, rows)
        ratio = min(MAX_CORRECTION, ms / expected) if expected > 0 else 1.0
        self._ratios.setdefault(key, Recent(BATCHES)).add(ratio)

    def relax(self, place: Assignment) -> None:
        """All that waited for this gpu-let was dropped because of an estimate, so none of it will be seen."""
        key = self._key(place)
        ratios = self._ratios.get(key)
        if ratios and ratios.quantile(0.5) > 1:
            ratios.forget()
        seen = self._seen.get(key, {})
        for size in list(seen):
            seen[size].forget()
            if not seen[size]:
                del seen[size]

    def _key(self, place: Assignment) -> Key:
        return place.model, self.kinds.get(place.gpu_let.gpu, ONE_KIND), place.gpu_let.sm

    def _row(self, key: Key) -> list[float]:
        row = self._rows.get(key)
        if row is None:
            model, kind, share = key
            profile = self._profiles.get((model, kind))
            row = self._rows[key] = profile.surface.row(share) if profile is not None else []
        return row

    @staticmethod
    def _profiled(row: list[float], place: Assignment, rows: int) -> float:
        last = len(row) - 1
        ms = row[rows] if rows <= last else row[last] * rows / last
        return ms * place.slowdown

    def _learned(self, key: Key, rows: int) -> float:
        """What batches of about this size took, or of the next smaller one seen; 0 before any was seen."""
        seen = self._seen.get(key)
        if not seen:
            return 0.0
        smaller = [size for size in seen if size <= rows.bit_length()]
        return seen[max(smaller) if smaller else min(seen)].quantile(0.5)
