"""How long a batch will take: what the profile says, corrected by what is seen; without a profile what is seen alone.

The dispatcher drops what it expects to be late, and what is dropped is never seen: so an estimate that was wrong once
would be wrong for ever. When all that waited was dropped because of an estimate, it is therefore lowered a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.margin import Margin

if TYPE_CHECKING:
    from gemlet.serve.profiles import ModelProfile
    from gemlet.serve.queue import Place

WEIGHT = 0.1  # of the newest batch in the running means
RELAX = 0.98
FIRST_IGNORED = 1  # batches of a model at a share: warming up
MAX_CORRECTION = 4.0


class Expectation:
    """Milliseconds by (model, SM share, rows)."""

    def __init__(self) -> None:
        self._profiles: dict[str, ModelProfile] = {}
        self._rows: dict[tuple[str, float], list[float]] = {}
        self._correction: dict[tuple[str, float], float] = {}
        self._seen: dict[tuple[str, float], dict[int, float]] = {}  # by the number of bits of the rows
        self._count: dict[tuple[str, float], int] = {}
        self._margins: dict[tuple[str, float], Margin] = {}

    def know(self, model: str, profile: ModelProfile | None) -> None:
        """From now on the model has this profile, or none; what was seen of it before is forgotten."""
        for table in (self._rows, self._correction, self._seen, self._count, self._margins):
            for key in [key for key in table if key[0] == model]:
                del table[key]
        self._profiles.pop(model, None)
        if profile is not None:
            self._profiles[model] = profile

    def __call__(self, place: Place, rows: int) -> float:
        key = (place.model, place.let.sm)
        row = self._rows.get(key)
        if row is None:
            row = self._row(key)
        if not row:
            return self._learned(key, rows)
        last = len(row) - 1
        ms = row[rows] if rows <= last else row[last] * rows / last
        return ms * place.alpha * self._correction.get(key, 1.0)

    def margin(self, place: Place) -> float:
        """By how many milliseconds 5 % of the last batches there were slower than expected, or more."""
        found = self._margins.get((place.model, place.let.sm))
        return found.ms if found is not None else 0.0

    def observe(self, place: Place, rows: int, ms: float) -> None:
        """A batch of so many rows took so long, from the dispatch to the answer."""
        key = (place.model, place.let.sm)
        count = self._count[key] = self._count.get(key, 0) + 1
        if count <= FIRST_IGNORED:
            return
        seen = self._seen.setdefault(key, {})
        size = rows.bit_length()
        if self._rows.get(key) or size in seen:
            self._margins.setdefault(key, Margin()).add(ms - self(place, rows))
        if self._rows.get(key):
            before = self._correction.get(key, 1.0)
            expected = self(place, rows) / before
            ratio = min(MAX_CORRECTION, ms / expected) if expected > 0 else 1.0
            self._correction[key] = before + WEIGHT * (ratio - before)
            return
        seen[size] = ms if size not in seen else seen[size] + WEIGHT * (ms - seen[size])

    def relax(self, place: Place) -> None:
        """All that waited for this gpu-let was dropped because of an estimate, so none of it will be seen."""
        key = (place.model, place.let.sm)
        correction = self._correction.get(key, 1.0)
        if correction > 1:
            self._correction[key] = max(1.0, correction * RELAX)
        seen = self._seen.get(key, {})
        for size in seen:
            seen[size] *= RELAX

    def _row(self, key: tuple[str, float]) -> list[float]:
        profile = self._profiles.get(key[0])
        row = self._rows[key] = profile.surface.row(key[1]) if profile is not None else []
        return row

    def _learned(self, key: tuple[str, float], rows: int) -> float:
        """What batches of about this size took, or of the next smaller one seen; 0 before any was seen."""
        seen = self._seen.get(key)
        if not seen:
            return 0.0
        smaller = [size for size in seen if size <= rows.bit_length()]
        return seen[max(smaller)] if smaller else min(seen.values())
