"""What the death of an executor means for what it had: which requests are tried again, and which are refused.

blame.py and quarantine.py decide; this knows the executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from gemlet.serve.dispatch.blame import Life, guilty, marks_of
from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.serve.dispatch.answers import Answers
    from gemlet.serve.dispatch.call import Call
    from gemlet.serve.dispatch.gpu_lets import Batch
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.dispatch.waits import Waits
    from gemlet.serve.execution.executor import Executor


class Deaths:
    """``clock`` gives milliseconds."""

    def __init__(self, answers: Answers, quarantine: Quarantine, waits: Waits, clock: Callable[[], float]) -> None:
        self._answers = answers
        self._quarantine = quarantine
        self._waits = waits
        self._clock = clock
        self._lives: WeakKeyDictionary[Executor, Life] = WeakKeyDictionary()
        self._guilty: WeakKeyDictionary[Executor, Sequence[Batch]] = WeakKeyDictionary()  # of those that have died

    def began(self, batch: Batch, executor: Executor) -> None:
        """It gets this batch now."""
        life = self._lives.get(executor)
        if life is None or life.only:  # else there is nothing to be learned any more, as nearly always
            marks = marks_of(batch)
            self._lives[executor] = Life(marks, marks) if life is None else Life(life.only & marks, life.began)

    def asked(self, call: Call, executor: Executor) -> None:
        """A model of this executor asks."""
        call.asker = ref(executor)
        batch = self._waits.batch(call.parent)
        if batch is not None:
            call.marks = marks_of(batch)

    def noticed(self, executor: Executor, running: Callable[[], Sequence[Batch]]) -> bool:
        """The first of its batches to come back says so. ``running``: all that it had then."""
        if executor in self._guilty:
            return False
        self._guilty[executor] = guilty(running(), self._waits, self._quarantine)
        return True

    def under(self, request: Request, batch: Batch, executor: Executor) -> Refusal | None:
        """It died, perhaps of this request. None: that is tried again."""
        call: Call = request.payload
        if batch not in self._guilty[executor]:
            return None
        call.tries += 1
        life, now = self._lives[executor], self._clock()
        if not self._quarantine.died(request.model, id(call), call.tries, now, sole=call.mark in life.only):
            request.together = 1  # it goes first: until it has, its model runs alone
            request.firsts += call.tries > 1 and call.mark in life.began
            return None
        times = f"died {call.tries} times" if call.tries > 1 else "died again"
        return Refusal("failed", f"the executor {times} while it ran requests for {request.model} with this one")

    def orphaned(self, request: Request) -> None:
        """Who asked for it has died, and asks again when it is tried again."""
        self._answers.forget(request)
        if not request.payload.gone:  # what is known of it there would never go
            request.payload.answer(Refusal("unavailable", "who asked for it has died"))


def asked_by(executor: Executor, call: Call) -> bool:
    return call.asker is not None and call.asker() is executor
