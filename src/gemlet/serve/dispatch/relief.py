"""What ends it that batches wait for each other: one request of theirs runs beside the batches that hold its gpu-let.

Those wait, so that nothing else of that gpu-let is at work. Pure: what is found here the engine carries out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from gemlet.serve.dispatch.dispatcher import Assignment, Dispatcher
    from gemlet.serve.dispatch.queue import Request
    from gemlet.serve.dispatch.waits import Waits, Ways

MAX_BESIDE = 32  # batches of a gpu-let beside its first one, each of which has a thread


def next_locked(waits: Waits, dispatcher: Dispatcher) -> tuple[Request, Assignment | None] | None:
    """A request that would wait for ever, and where it can run beside those that wait; None: nowhere.

    One that meets no batch of its own model there goes first: models that do not ask each other in a circle always have
    one.
    """
    locked = waits.locked(lambda model: _ways(dispatcher, model))
    found: tuple[Request, Assignment | None] | None = None
    for request in _requests(waits, dispatcher, locked):
        for place in dispatcher.places(request.model):
            if len(place.gpu_let.beside) >= MAX_BESIDE or not dispatcher.may_meet(place):
                continue
            if all(batch.place.model != request.model for batch in place.gpu_let.batches):
                return request, place
            if found is None or found[1] is None:
                found = request, place
        found = found or (request, None)
    return found


def _requests(waits: Waits, dispatcher: Dispatcher, locked: Set[int]) -> Iterator[Request]:
    """Of each queue the first one that a locked batch waits for."""
    for model in waits.labels(locked):
        yield from [request for request in dispatcher.queues.get(model, ()) if request.payload.parent in locked][:1]


def _ways(dispatcher: Dispatcher, model: str) -> Ways:
    ways: Ways = []
    for place in dispatcher.places(model):
        # It will be free when its executor has started again, and met when what is at work on the device ends or waits.
        comes = place.gpu_let.suspended or not dispatcher.may_meet(place)
        ways.append([] if comes else [[batch.number for batch in place.gpu_let.batches]])
    return ways
