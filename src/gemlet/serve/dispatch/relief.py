"""What ends it that batches wait for each other: one request of theirs runs beside the batches that hold its gpu-let.

Those wait, so that nothing else of that gpu-let is at work. Pure: what is found here the engine carries out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from gemlet.serve.dispatch.dispatcher import Dispatcher
    from gemlet.serve.dispatch.gpu_lets import Assignment
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.dispatch.waits import Waits, Ways

MAX_BESIDE = 32  # batches of a gpu-let beside its first one, each of which has a thread


def next_locked(waits: Waits, dispatcher: Dispatcher) -> tuple[Request, Assignment | None] | None:
    """A request that would wait for ever, and where it can run beside those that wait; None: nowhere.

    One that meets no batch of its own model there goes first: models that do not ask each other in a circle always have
    one.
    """
    locked = waits.locked(lambda model: _ways(dispatcher, model))
    found = _among(waits, dispatcher, locked, wide=False)
    return found if found is not None and found[1] is not None else _among(waits, dispatcher, locked, wide=True)


def _among(
    waits: Waits, dispatcher: Dispatcher, locked: Set[int], *, wide: bool
) -> tuple[Request, Assignment | None] | None:
    """``wide``: whatever suspects that meets that wait."""
    found: tuple[Request, Assignment | None] | None = None
    for requests in _requests(waits, dispatcher, locked):
        at = dispatcher.places(requests[0].model)
        if any(place.gpu_let.suspended for place in at):
            continue  # it waits for that
        places = [(place, dispatcher.meetings.may_meet(place, locked=wide)) for place in at]
        for request in requests:
            there = [place for place, may_meet in places if may_meet(request)]
            if places and not there:
                continue  # it waits for what does not wait for it
            for place in there:
                if len(place.gpu_let.beside) >= MAX_BESIDE:
                    continue
                if all(batch.place.model != request.model for batch in place.gpu_let.batches):
                    return request, place
                if found is None or found[1] is None:
                    found = request, place
            found = found or (request, None)
            break
    return found


def _requests(waits: Waits, dispatcher: Dispatcher, locked: Set[int]) -> Iterator[list[Request]]:
    """Of each queue those that a locked batch waits for."""
    for model in waits.labels(locked):
        found = [request for request in _asked(dispatcher, model) if request.payload.parent in locked]
        if found:
            yield found


def _asked(dispatcher: Dispatcher, model: str) -> list[Request]:
    queue = dispatcher.queues.get(model)
    return queue.asked if queue is not None else []


def _ways(dispatcher: Dispatcher, model: str) -> Ways:
    ways: Ways = []
    meetings = dispatcher.meetings
    waiting = _asked(dispatcher, model) if meetings.has_suspects else []
    for place in dispatcher.places(model):
        held = [place.gpu_let]
        if place.gpu_let.suspended:  # it will be free when its executor has started again
            held = []
        elif meetings.has_suspects and not any(map(meetings.may_meet(place), waiting)):
            # It is met when what is at work on the device ends or waits, if that waits for it, and else when it ends.
            held = meetings.on_device_of(place) if any(map(meetings.may_meet(place, locked=True), waiting)) else []
        ways.append([[batch.number for batch in each.batches] for each in held if each.batches])
    return ways
