"""Which models may run, after executors died under them. Pure: the caller gives the time, in milliseconds.

An executor that dies does not say of what. All that it ran is suspect then, and runs *alone*: one request at a time,
and no two suspects at once on one device. If an executor dies under a suspect, the suspect runs by *itself* after that:
nothing else is on its device but what it asks others, and what asked for it. A request that had its chances is
condemned if the executor can have died of nothing else (blame.py); otherwise it is tried again, first on a fresh one.
Of several for which that did not come true, those go first that have been first less often.

A model of which a request was condemned is on probation: by itself until one is answered, without a second chance for
any. Of the second such request on it rests before that, longer each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TRIES = 2  # of a request under which executors died
FREE_STRIKES = 1  # condemned requests for which a model does not rest
FIRST_REST_MS = 1_000.0
MAX_REST_MS = 300_000.0
FORGET_MS = 600_000.0  # without another condemned request: what was before it counts no more


@dataclass(slots=True)
class _Case:
    """suspected: requests that wait for another try, and whether by themselves. unclear: see Quarantine.unclear()."""

    strikes: int = 0
    struck: float = 0.0
    until: float = 0.0
    probation: bool = False
    unclear: bool = False
    suspected: dict[int, bool] = field(default_factory=dict)


class Quarantine:
    """Of all models of a server. ``alone``: those that run alone now, ``by_itself``: a part of them. Both are empty as
    long as nothing dies."""

    def __init__(self) -> None:
        self.alone: set[str] = set()
        self.by_itself: set[str] = set()
        self._cases: dict[str, _Case] = {}

    def guilty(self, running: Iterable[str]) -> set[str]:
        """Of the models that a dead executor ran, those it may have died of: a suspect before all others."""
        models = set(running)
        return models & self.alone or models

    def died(self, model: str, request: int, tries: int, now: float, *, sole: bool) -> bool:
        """An executor died under this request (any number that stays its own), for the ``tries``-th time.

        sole: it can have died of nothing else, see blame.py. Whether the request is condemned; it has another try
        otherwise.
        """
        case = self._cases.setdefault(model, _Case())
        if not sole or (tries < MAX_TRIES and not case.probation):
            case.suspected[request] = tries >= MAX_TRIES
            self._sort(model, case)
            return False
        if now - case.struck > FORGET_MS:
            case.strikes = 0
        case.strikes += 1
        case.struck = now
        case.probation = True
        case.suspected.pop(request, None)
        if case.strikes > FREE_STRIKES:
            rest = min(MAX_REST_MS, FIRST_REST_MS * 2.0 ** min(case.strikes - FREE_STRIKES - 1, 32))
            case.until = now + rest
            case.suspected.clear()
        self._sort(model, case)
        return True

    def unclear(self, model: str) -> None:
        """An executor died under several requests of it that others had asked for, and ask again: the model runs alone
        until it answers one, so that it shows whose request it is."""
        case = self._cases.setdefault(model, _Case())
        case.unclear = True
        self._sort(model, case)

    def ended(self, model: str, request: int, *, ran: bool) -> None:
        """A request of a suspect has its answer; ``ran``: an executor gave it."""
        case = self._cases.get(model)
        if case is not None:
            case.suspected.pop(request, None)
            case.probation = case.probation and not ran
            case.unclear = case.unclear and not ran
            self._sort(model, case)

    def rests(self, model: str, now: float) -> float:
        """Milliseconds for which nothing of it is run."""
        case = self._cases.get(model)
        return max(0.0, case.until - now) if case is not None else 0.0

    def strikes(self, model: str) -> int:
        """Requests of it that were condemned."""
        case = self._cases.get(model)
        return case.strikes if case is not None else 0

    def forget(self, model: str) -> None:
        """It was loaded anew: what its old files did counts no more."""
        self._cases.pop(model, None)
        self.alone.discard(model)
        self.by_itself.discard(model)

    def _sort(self, model: str, case: _Case) -> None:
        for models, belongs in (
            (self.alone, case.probation or case.unclear or bool(case.suspected)),
            (self.by_itself, case.probation or any(case.suspected.values())),
        ):
            if belongs:
                models.add(model)
            else:
                models.discard(model)
