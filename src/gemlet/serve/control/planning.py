"""Planning in a process of its own, so that the server's event loop keeps its core and its interpreter."""

from __future__ import annotations

import asyncio
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.serve.control import propose
from gemlet.serve.helper_process import pool_of_one, prepare
from gemlet.serve.plan import planner

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from types import TracebackType

    from gemlet.serve.control.propose import Proposal, Question
    from gemlet.serve.profiles.kinds import Known

_profiles: Known | None = None  # of the process that plans


class PlanningProcess:
    """Answers questions, one after the other; a context manager. The process starts with the first question."""

    def __init__(self, profiles: Known) -> None:
        self._profiles = profiles
        self._pool = self._start()

    def __enter__(self) -> PlanningProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)  # waits for one plan at most; without that the interpreter's end fails

    def know(self, profiles: Known) -> None:
        """Plans are for these models from now on; a plan that is being made is finished before."""
        if profiles != self._profiles:
            self._profiles = profiles
            self._pool.shutdown(wait=False)
            self._pool = self._start()

    async def __call__(self, question: Question) -> Proposal:
        """Raises GemletError: the planner's, or that the process was killed; the next question gets another one."""
        try:
            return await asyncio.wrap_future(self._pool.submit(_answer, question))
        except BrokenProcessPool:
            self._pool = self._start()
            raise GemletError("the planning process was killed", hint="check whether memory ran out") from None

    def _start(self) -> ProcessPoolExecutor:
        return pool_of_one(_prepare, self._profiles)


def _prepare(profiles: Known) -> None:
    global _profiles  # noqa: PLW0603  the pool's initializer has no other place
    prepare()
    _profiles = profiles


def _answer(question: Question) -> Proposal:
    assert _profiles is not None
    return propose.answer(_profiles, question, planner.plan)
