"""Which batches an executor may have died of. Pure.

A batch that waits for what it has asked is there as well, and what is at work may be at work for it: what a request has
others do counts as done by itself, for it is asked of them again with each try of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.dispatch.dispatcher import Batch
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.waits import Waits


@dataclass(frozen=True, slots=True)
class Blame:
    """``guilty``: batches that it may have died of. sole: those of them beside which nothing was at work but batches of
    the same model, and what was at work for them."""

    guilty: Sequence[Batch]
    sole: Sequence[Batch]


def blame(batches: Sequence[Batch], waits: Waits, quarantine: Quarantine) -> Blame:
    """``batches``: all that the executor had when it died."""
    numbered = {batch.number: batch for batch in batches if batch.number}

    def is_of(batch: Batch, other: Batch) -> bool:
        """Whether all of it is of that model, or was asked for by that batch."""
        askers = [numbered.get(request.payload.parent) for request in batch.requests]
        return batch.place.model == other.place.model or all(asker and is_of(asker, other) for asker in askers)

    models = quarantine.guilty(batch.place.model for batch in batches)
    guilty = [batch for batch in batches if batch.place.model in models]
    at_work = [batch for batch in batches if not waits.waits(batch)] or list(batches)
    if not any(is_of(batch, suspect) for batch in at_work for suspect in guilty):
        guilty += at_work  # suspects that wait for others are no reason to overlook these
    for batch in guilty:  # and what is added meanwhile
        askers = (numbered.get(request.payload.parent) for request in batch.requests)
        guilty += [asker for asker in dict.fromkeys(askers) if asker is not None and asker not in guilty]
    return Blame(guilty, [batch for batch in guilty if all(is_of(each, batch) for each in at_work)])
