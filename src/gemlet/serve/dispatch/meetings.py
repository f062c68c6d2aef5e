"""Who may meet whom: what may run on a device beside suspects, by which its executor may die (quarantine.py). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gemlet.serve.dispatch.gpu_lets import Assignment, Batch, GpuLetState
    from gemlet.serve.dispatch.quarantine import Quarantine
    from gemlet.serve.dispatch.queue import Queue
    from gemlet.serve.dispatch.request import Request


class Waiting(Protocol):
    """Which batches wait for others; Waits implements it."""

    def waits(self, batch: Batch) -> bool: ...

    def asked(self, request: Request) -> bool:
        """Whether any batch asked for it."""
        ...

    def family(self, batches: Iterable[Batch]) -> Callable[[Request], bool]:
        """Whether one of these asked for a request, or for what did."""
        ...

    def asks(self, batches: Iterable[Batch], holding: Callable[[str], Iterable[Batch]]) -> Callable[[Request], bool]:
        """Whether one of these waits for a request, or for a batch that does."""
        ...


class NoneWaits:
    """Of models that ask no others."""

    def waits(self, _batch: Batch) -> bool:
        return False

    def asked(self, _request: Request) -> bool:
        return False

    def family(self, _batches: Iterable[Batch]) -> Callable[[Request], bool]:
        return lambda _request: False

    def asks(self, _batches: Iterable[Batch], _holding: Callable[[str], Iterable[Batch]]) -> Callable[[Request], bool]:
        return lambda _request: False


class Meetings:
    """``gpu_lets``: those of the plan in force; ``queues``: by model."""

    def __init__(self, suspects: Quarantine, waits: Waiting, queues: Mapping[str, Queue]) -> None:
        self.gpu_lets: Sequence[GpuLetState] = ()
        self._suspects = suspects
        self._alone = suspects.alone
        self._waits = waits
        self._queues = queues

    def may_meet(self, place: Assignment, *, locked: bool = False) -> Callable[[Request], bool]:
        """Which requests may run there beside what runs on the same device. ``locked``: if that waits for ever else."""
        if not self._alone:
            return _any
        asked, others = self.may_start(place, locked=locked)
        return lambda request: others or (asked is not None and asked(request))

    @property
    def has_suspects(self) -> bool:
        """Whether any model may not meet others."""
        return bool(self._alone)

    def on_device_of(self, place: Assignment) -> list[GpuLetState]:
        """Gpu-lets."""
        return [gpu_let for gpu_let in self.gpu_lets if gpu_let.gpu == place.gpu_let.gpu]

    def may_start(self, place: Assignment, *, locked: bool = False) -> tuple[Callable[[Request], bool] | None, bool]:
        """Which requests of a model do not meet a suspect there that they must not meet: those that were asked for by
        what is there, and whether others. ``locked``: what is there waits for ever, unless what it waits for runs."""
        gpu_lets = self.on_device_of(place)
        there = [batch for gpu_let in gpu_lets for batch in gpu_let.batches]
        by_itself, models = self._suspects.by_itself, {batch.place.model for batch in there}
        waiting = any(
            self._queues[model]
            for gpu_let in gpu_lets
            if not gpu_let.suspended  # else it could not start there yet, whatever ends
            for model in gpu_let.places.keys() & by_itself
        )
        others = self._may_meet(place.model, models) and (place.model in by_itself or not waiting)
        if others or not there:
            return None, others
        at_work = {batch.place.model for batch in there if not self._waits.waits(batch)}
        if not self._may_meet(place.model, at_work):
            return None, False
        if place.model in by_itself and all(batch.gpu_let.host is not place.gpu_let.host for batch in there):
            return self._waits.asked, False  # its host's end would tell as much of it as if it were the only one
        if locked:
            return self._waits.asks(there, self._on_devices_of), False
        families = [self._waits.family([batch]) for batch in there if batch.place.model in by_itself]
        families.append(self._waits.family(there))
        return lambda request: all(family(request) for family in families), False

    def _may_meet(self, model: str, met: set[str]) -> bool:
        if model in self._suspects.by_itself:
            return not met
        return not met & self._suspects.by_itself and (model not in self._alone or not met & self._alone)

    def _on_devices_of(self, model: str) -> list[Batch]:
        """What is where this model may have to wait for it."""
        devices = {gpu_let.gpu for gpu_let in self.gpu_lets if model in gpu_let.places}
        gpu_lets = [gpu_let for gpu_let in self.gpu_lets if gpu_let.gpu in devices]
        return [batch for gpu_let in gpu_lets for batch in gpu_let.batches]


def _any(_request: Request) -> bool:
    return True
