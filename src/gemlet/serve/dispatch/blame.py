"""Which requests an executor may have died of, and of which it must have died. Pure.

It can have died of nothing but one request if all that was ever there is that request, in any of its tries, and what
was asked for it. What waits there for others may end it, too, and so may what a request has left behind that was
answered long ago. What a request has others do counts as done by itself, for it is asked of them again with each try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.gpu_lets import Batch
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.waits import Waits


@dataclass(frozen=True, slots=True)
class Life:
    """What an executor has had since it started, as marks of requests: ``only`` of those for which all of it was,
    ``began`` of those for which the first batch was."""

    only: frozenset[object]
    began: frozenset[object]


def marks_of(batch: Batch) -> frozenset[object]:
    """Of the requests for which all of it is."""
    return frozenset.intersection(*[_marks(request.payload) for request in batch.requests])


def _marks(call: Call) -> frozenset[object]:
    """Of it, and of those for which it was asked."""
    if call.mark is None:
        call.mark = object()
        call.marks |= {call.mark}
    return call.marks


def guilty(batches: Sequence[Batch], waits: Waits, quarantine: Quarantine) -> Sequence[Batch]:
    """Those that are tried again as suspects, of ``batches``: all that an executor had when it died."""
    parents = {batch: {request.payload.parent for request in batch.requests} for batch in batches}
    numbered = {batch.number: batch for batch in batches if batch.number}
    models = quarantine.guilty(batch.place.model for batch in batches)
    found = [batch for batch in batches if batch.place.model in models]
    at_work = [batch for batch in batches if not waits.waits(batch)] or list(batches)
    by_itself = quarantine.by_itself
    if not any(batch in found and batch.place.model not in by_itself for batch in at_work):
        # Suspects that wait are no reason to overlook these, nor are those beside which nothing should be there.
        found += [batch for batch in batches if batch not in found]
    for batch in found:  # and what is added meanwhile
        askers = [numbered[parent] for parent in sorted(parents[batch]) if parent in numbered]
        found += [asker for asker in askers if asker not in found]
    return found
