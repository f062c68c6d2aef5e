"""One process for a device, a stream for each gpu-let, all SMs for all of them: the baseline for partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gemlet.serve.execution.backends.torch_gpu_lets import CapturedStream, TorchGpuLets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.execution.backend import BackendOptions, GpuLet


class StreamsBackend(TorchGpuLets):
    """Shares have no effect: the gpu-let that submits first has the SMs first."""

    name = "streams"
    note = "all gpu-lets share all SMs; shares have no effect"

    def captured_streams_for(self, gpu_lets: Sequence[GpuLet]) -> dict[str, CapturedStream]:
        return {gpu_let.name: self.captured_stream(gpu_let.name, self._stream(gpu_let.name)) for gpu_let in gpu_lets}

    def _stream(self, gpu_let: str) -> torch.cuda.Stream:
        there = self._captured_streams.get(gpu_let)
        return there.stream if there else torch.cuda.Stream()


def create(options: BackendOptions) -> StreamsBackend:
    return StreamsBackend(options)
