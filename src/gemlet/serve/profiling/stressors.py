"""Three programs that do nothing but take one resource, as CUDA graphs of about a millisecond or two.

dram     adds to arrays far larger than the L2: all the memory's bandwidth
l2       adds in place to an array of half the L2, so that it stays there: the L2's bandwidth and half of its space
compute  multiplies half-precision matrices that stay in the L2: tensor cores, and the power they take

They are ordinary kernels of torch, so they run wherever it does, and on the SMs of their stream only. No copies
are among them: those may go to a copy engine, which belongs to no gpu-let.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024**2
DRAM_BYTES = 512 * MIB


class Stressor:
    """One of them, on one stream."""

    def __init__(self, resource: str, stream: torch.cuda.Stream, sms: int) -> None:
        self.stream = stream
        with torch.inference_mode(), torch.cuda.stream(stream):
            work = _WORK[resource](sms)
            work()
            stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                self._graph.capture_end()
        self._keep = work  # its tensors

    def launch(self) -> None:
        with torch.cuda.stream(self.stream):
            self._graph.replay()


def _dram(_sms: int) -> Callable[[], None]:
    source = torch.ones(DRAM_BYTES // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        for _ in range(2):
            torch.add(source, 1.0, out=target)

    return work


def _l2(_sms: int) -> Callable[[], None]:
    size = torch.cuda.get_device_properties().L2_cache_size // 2
    array = torch.zeros(size // 4, dtype=torch.float32, device="cuda")

    def work() -> None:
        for _ in range(40):
            array.add_(1.0)

    return work


def _compute(sms: int) -> Callable[[], None]:
    side = 2048
    left, right = (torch.randn(side, side, device="cuda").half() / side**0.5 for _ in range(2))
    product = torch.empty_like(left)
    times = max(2, round(60 * sms / 132))

    def work() -> None:
        for _ in range(times):
            torch.mm(left, right, out=product)

    return work


_WORK: dict[str, Callable[[int], Callable[[], None]]] = {"dram": _dram, "l2": _l2, "compute": _compute}
