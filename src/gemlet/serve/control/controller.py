"""The controller beside a server: looks at the fleet several times a second, plans when there is a reason, and applies
the plan.

Counting goes on while a plan is made and applied, so no request is missed. If a plan cannot be applied, because an
executor died meanwhile, say, the next look sees the devices that are left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.serve.control import difference, propose
from gemlet.serve.control.change import Change
from gemlet.serve.control.decide import Decider
from gemlet.serve.control.propose import Proposal
from gemlet.serve.plan import planner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gemlet.serve.control.controlled_fleet import Backlog, ControlledFleet, Scaler
    from gemlet.serve.control.propose import Question
    from gemlet.serve.control.settings import Cause, ControlSettings
    from gemlet.serve.plan.model import Demand
    from gemlet.serve.profiles.kinds import Known

logger = logging.getLogger(__name__)
HISTORY = 1000


class Controller:
    """Runs until it is cancelled.

    ``clock`` gives seconds, by default the event loop's. ``ask`` makes plans: PlanningProcess in a server; by default
    they are made here, which blocks the loop for tens of milliseconds. ``say`` gets each change.

    applying: held while a plan comes into force, here and by any other code that makes one; earlier questions are
    outdated then. paused: rates are counted, and no plan is made.
    """

    def __init__(
        self,
        fleet: ControlledFleet,
        profiles: Known,
        demands: Sequence[Demand],
        options: ControlSettings | None = None,
        clock: Callable[[], float] | None = None,
        *,
        ask: Callable[[Question], Awaitable[Proposal]] | None = None,
        waiting: Backlog | None = None,
        scaler: Scaler | None = None,
        say: Callable[[Change], None] | None = None,
    ) -> None:
        self.decider = Decider(demands, options)
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self.applying = asyncio.Lock()
        self.paused = False
        self._fleet = fleet
        self._clock = clock
        self._ask = ask or partial(_plan_here, profiles)
        self._waiting = waiting
        self._scaler = scaler
        self._say = say
        self._wanted: int | None = None
        self._cause: Cause | None = None
        self._woken = asyncio.Event()

    async def run(self) -> None:
        if self.decider.in_force is None:
            self._take_over()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="controller: rates")
            tasks.create_task(self._replan(), name="controller: plans")

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(self.decider.settings.tick_s)

    def look(self) -> None:
        """One look at the fleet. The server also calls it when a device dies, in order not to wait for the next
        look. Never raises."""
        try:
            self._look()
        except Exception:  # the plan in force serves on
            logger.exception("a look at the load failed")

    def _look(self) -> None:
        devices = [device.index for device in self._fleet.devices()]
        waiting = self._waiting() if self._waiting is not None else None
        cause = self.decider.observe(self._now(), self._fleet.counts(), devices, waiting)
        if cause is not None and not self.paused:
            # Of several reasons the most urgent is reported; the question itself covers them all.
            if self._cause is None or (cause.emergency and not self._cause.emergency):
                self._cause = cause
            self._woken.set()

    async def _replan(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            cause, self._cause = self._cause, None
            if cause is not None:
                await self._follow(cause)

    def _take_over(self) -> None:
        """The plan that the server started with is in force."""
        plan = self._fleet.plan()
        if plan.gpus:
            self.decider.started_with(plan, self._now())

    async def _follow(self, cause: Cause) -> None:
        began = self._now()
        question = self.decider.question(cause)
        proposal = Proposal(question, None, 0)
        failure = None
        old = self.decider.in_force
        if cause.reason == "devices":
            # As many are to be asked for again: one that rests may take the place of one that is lost.
            self._wanted = None
        try:
            proposal = await self._ask(question)
            await self._scale(proposal.devices, grow=True)
            async with self.applying:
                if self.paused or self.decider.in_force is not old:
                    # A model came or went meanwhile, with a plan of its own: this one may have no place for it.
                    self.decider.failed(self._now())
                    return
                if proposal.plan is None:
                    failure = "; ".join(proposal.notes)
                elif proposal.plan.gpus != self._fleet.plan().gpus:  # not `old`: its last step may have failed
                    for plan in proposal.stages:
                        await self._fleet.apply(plan)
                self.decider.adopted(proposal, self._now())
            await self._scale(proposal.devices, grow=False)
        except (GemletError, OSError) as error:
            failure = str(error) or type(error).__name__
            self.decider.failed(self._now())
        except Exception as error:  # the plan in force serves on, whatever is wrong with this one
            logger.exception("a new plan failed")
            failure = f"{type(error).__name__}: {error}"
            self.decider.failed(self._now())
        self._tell(proposal, began, failure)

    async def _scale(self, devices: int, *, grow: bool) -> None:
        """More devices are asked for before a plan is applied, fewer when nothing needs them any more."""
        if self._scaler is None or devices == self._wanted:
            return
        # At first all devices are there, however many that is.
        if grow == (self._wanted is not None and devices > self._wanted):
            await self._scaler.scale(devices)
            self._wanted = devices

    def _tell(self, proposal: Proposal, began: float, failure: str | None) -> None:
        plan = proposal.plan
        stayed, moved = (0, 0) if plan is None else difference.moved(proposal.question.in_force, plan)
        change = Change(
            at=began,
            cause=proposal.question.cause,
            gpus=len(plan.gpus) if plan is not None else 0,
            stayed=stayed,
            moved=moved,
            part=proposal.part,
            took_s=self._now() - began,
            notes=proposal.notes,
            failure=failure,
        )
        self.history.append(change)
        if self._say is not None:
            self._say(change)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()


async def _plan_here(profiles: Known, question: Question) -> Proposal:
    return propose.answer(profiles, question, planner.plan)
