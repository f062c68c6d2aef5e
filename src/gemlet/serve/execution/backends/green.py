"""One process for a device, a green context for each gpu-let: kernels of a gpu-let run on SMs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.execution.backends.torch_lets import Seat, TorchLets
from gemlet.serve.execution.parts import Parts
from gemlet.serve.execution.placement import Range, groups_for, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gemlet.serve.execution.backend import BackendOptions, LetSpec


class GreenBackend(TorchLets):
    """Shares are whole groups of SMs, rounded down; the whole device is every SM, also those in no group."""

    name = "green"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._parts = Parts(options.device)
        groups = self._parts.groups
        self.groups = groups.count
        self.note = f"{groups.sms} SMs in {groups.count} groups of {groups.group_sms}"

    def another_stream(self, seat: Seat) -> torch.cuda.Stream:
        assert isinstance(seat.key, Range)
        return self._parts.another_stream(*seat.key)

    def seats_for(self, lets: Sequence[LetSpec]) -> dict[str, Seat]:
        groups = self._parts.groups
        wanted = {let.name: groups_for(let.sm, groups.count) for let in lets}
        before = {name: seat.key for name, seat in self._lets.items() if isinstance(seat.key, Range)}
        ready = {key for key, seat in self._seats.items() if seat.models and isinstance(key, Range)}
        ranges = place(wanted, groups.count, before, ready)
        return {name: self.seat(where, self._parts.stream(*where)) for name, where in ranges.items()}


def create(options: BackendOptions) -> GreenBackend:
    return GreenBackend(options)
