"""One process for a device, a green context for each gpu-let: kernels of a gpu-let run on SMs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.execution.backends.torch_gpu_lets import CapturedStream, TorchGpuLets
from gemlet.serve.execution.parts import Parts
from gemlet.serve.execution.placement import Range, groups_for, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gemlet.serve.execution.backend import BackendOptions, GpuLet


class GreenBackend(TorchGpuLets):
    """Shares are whole groups of SMs, rounded down; the whole device is every SM, also those in no group."""

    name = "green"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._parts = Parts(options.device)
        groups = self._parts.groups
        self.groups = groups.count
        self.note = f"{groups.sms} SMs in {groups.count} groups of {groups.group_sms}"

    def another_stream(self, captured: CapturedStream) -> torch.cuda.Stream:
        assert isinstance(captured.key, Range)
        return self._parts.another_stream(*captured.key)

    def captured_streams_for(self, gpu_lets: Sequence[GpuLet]) -> dict[str, CapturedStream]:
        groups = self._parts.groups
        wanted = {gpu_let.name: groups_for(gpu_let.sm, groups.count) for gpu_let in gpu_lets}
        before = {name: captured.key for name, captured in self._gpu_lets.items() if isinstance(captured.key, Range)}
        ready = {key for key, captured in self._captured_streams.items() if captured.models and isinstance(key, Range)}
        ranges = place(wanted, groups.count, before, ready)
        return {name: self.captured_stream(where, self._parts.stream(*where)) for name, where in ranges.items()}


def create(options: BackendOptions) -> GreenBackend:
    return GreenBackend(options)
