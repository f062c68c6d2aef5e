"""One modelled device: which contexts run, and how fast.

Without MPS the hardware switches between the contexts that have work: a slice for each in turn, a switch whenever
another context runs than the last, and a context that runs dry gives way at once. Under MPS all run at the same time,
each at full speed as long as their kernels find room beside each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.simulate.queue import Queue
    from gemlet.simulate.workload import DeviceModel


class Context(Protocol):
    """What the device needs of a client."""

    queue: Queue
    demand: float  # part of the device that one of its kernels uses
    sm: float  # ... and may use, under MPS
    watched: bool  # the device must know when it runs dry

    @property
    def own_rate(self) -> float:
        """How fast its kernels run on its own multiprocessors, with nobody beside; 1 is on all of them."""

    def settle(self, now: int) -> None:
        """Brings its queue up to ``now``."""

    def changed(self) -> None:
        """What comes next for it has to be found anew."""


class Device:
    """Gives each context its rate; ``update`` after each event."""

    def __init__(self, model: DeviceModel, at: Callable[[int, Callable[[], None]], None]) -> None:
        self.model = model
        self._at = at
        self._contexts: list[Context] = []
        self._current: Context | None = None
        self._coming: Context | None = None  # the hardware switches to it
        self._began = 0  # the current one's slices
        self._slice_end: int | None = None
        self.switches = 0

    def add(self, context: Context) -> None:
        self._contexts.append(context)

    def remove(self, context: Context) -> None:
        self._contexts.remove(context)
        context.queue.rate = 0.0
        context.watched = False
        if self._current is context:
            self._current = None

    def update(self, now: int) -> None:
        """Something was launched, ran dry, or time has come to look."""
        if self.model.mps:
            self._share(now)
        elif self._coming is None:
            self._slice(now)

    def _slice(self, now: int) -> None:
        current = self._current
        others = any(c is not current and c.queue.given > c.queue.done for c in self._contexts)
        if current is not None:
            if current.watched != others:
                current.watched = others
                current.changed()
            if not others:
                self._slice_end = None
                return
            current.settle(now)
            if current.queue.backlog > 0 and (self._slice_end is None or now < self._slice_end):
                if self._slice_end is None:
                    length = self.model.slice
                    self._slice_end = end = self._began + ((now - self._began) // length + 1) * length
                    self._at(end, lambda: None)
                return
        if others:
            self._switch(now)

    def _switch(self, now: int) -> None:
        current = self._current
        start = self._contexts.index(current) + 1 if current in self._contexts else 0
        order = self._contexts[start:] + self._contexts[:start]
        self._coming = coming = next(c for c in order if c is not current and c.queue.backlog > 0)
        if current is not None:
            self._set_rate(current, 0.0, now)
            current.watched = False
        self._current = None
        self._slice_end = None
        self.switches += 1
        self._at(now + self.model.switch, lambda: self._switched(coming, now + self.model.switch))

    def _switched(self, coming: Context, now: int) -> None:
        self._coming = None
        if coming not in self._contexts:  # it left meanwhile
            return
        self._current = coming
        self._began = now
        self._set_rate(coming, 1.0, now)

    def _share(self, now: int) -> None:
        wanting = []
        for context in self._contexts:
            context.settle(now)
            queue = context.queue
            context.watched = queue.backlog > 0
            if queue.backlog > 0:
                wanting.append((context, min(context.demand, context.sm)))
            elif queue.mode == "flow" and queue.limit:
                wanting.append((context, min(context.demand, context.sm) * min(1.0, queue.kernel / queue.gap)))
        total = sum(demand for _, demand in wanting)
        most = max(self.model.mps_speedup, 1.0)
        level = min(1.0, 1.0 / total if total > 0 else 1.0, most / max(len(wanting), 1))
        for context in self._contexts:
            own = context.own_rate
            active = any(other is context for other, _ in wanting)
            self._set_rate(context, own * level if active else own, now)

    def _set_rate(self, context: Context, rate: float, now: int) -> None:
        if context.queue.rate == rate:
            return
        context.settle(now)
        context.queue.rate = rate
        context.changed()
