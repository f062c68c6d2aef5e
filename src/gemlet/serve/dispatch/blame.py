"""Which batches an executor may have died of. Pure.

A batch that waits for what it has asked is there as well, and what is at work may be at work for it: what a request has
others do counts as done by itself, for it is asked of them again with each try of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.dispatch.dispatcher import Batch
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.waits import Waits


@dataclass(frozen=True, slots=True)
class Blame:
    """``guilty``: batches that it may have died of. sole: those of them that are one request beside which nothing was
    at work but what was asked for it alone."""

    guilty: Sequence[Batch]
    sole: Sequence[Batch]


def blame(batches: Sequence[Batch], waits: Waits, quarantine: Quarantine) -> Blame:
    """``batches``: all that the executor had when it died."""
    parents = {batch: {request.payload.parent for request in batch.requests} for batch in batches}
    numbered = {batch.number: batch for batch in batches if batch.number}
    earliest = sorted(batches, key=lambda batch: batch.number or inf)  # who asks has begun before what was asked

    def work_of(batch: Batch) -> set[Batch]:
        """It, and all that was asked for it alone."""
        found, numbers = {batch}, {batch.number} - {0}
        for each in earliest:
            if parents[each] <= numbers:
                found.add(each)
                numbers |= {each.number} - {0}
        return found

    models = quarantine.guilty(batch.place.model for batch in batches)
    guilty = [batch for batch in batches if batch.place.model in models]
    at_work = [batch for batch in batches if not waits.waits(batch)] or list(batches)
    by_itself = quarantine.by_itself
    if not any(batch in guilty and batch.place.model not in by_itself for batch in at_work):
        # Suspects that wait are no reason to overlook these, nor are those beside which nothing should be at work.
        guilty += [batch for batch in at_work if batch not in guilty]
    for batch in guilty:  # and what is added meanwhile
        askers = [numbered[parent] for parent in sorted(parents[batch]) if parent in numbered]
        guilty += [asker for asker in askers if asker not in guilty]
    return Blame(guilty, [batch for batch in guilty if len(batch.requests) == 1 and work_of(batch).issuperset(at_work)])
