"""One process for each gpu-let, a client of MPS: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, set before it starts, is its share.

MPS takes the percentage when the process first uses the device, so another share means another process. Percentages
of several gpu-lets may sum to more than 100: MPS lets them overlap.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import torch

from gemlet.errors import DeviceError
from gemlet.membership import PERCENTAGE
from gemlet.serve.execution.backends.torch_gpu_lets import CapturedStream, TorchGpuLets
from gemlet.serve.execution.whole_device import percentage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.execution.backend import BackendOptions, GpuLet

MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED


class MpsBackend(TorchGpuLets):
    """The only gpu-let of its process."""

    name = "mps"
    # Clients of MPS share the device's queues, and one keeps those it asked for: with 32 each, the fourth process had
    # "out of memory" when it started (H200). This one has one gpu-let, and one stream.
    connections = "2"

    def __init__(self, options: BackendOptions) -> None:
        if PERCENTAGE not in os.environ:
            hint = "start MPS with `gemlet mps start`: the variable is set for executors that start under it"
            raise DeviceError(f"{PERCENTAGE} is not set", hint=hint)
        super().__init__(options)
        self._stream = torch.cuda.Stream()  # and a context, so that the driver can tell
        if not _under_mps(options.device):
            raise DeviceError(
                "this process is not a client of MPS, so an SM fraction would have no effect",
                hint="start it with `gemlet mps start`",
            )
        self.percentage = percentage()
        sms = torch.cuda.get_device_properties(options.device).multi_processor_count
        self.note = f"{self.percentage:g} % of the SMs by MPS; torch sees {sms}"

    def captured_streams_for(self, gpu_lets: Sequence[GpuLet]) -> dict[str, CapturedStream]:
        if len(gpu_lets) > 1:
            raise DeviceError(f"{len(gpu_lets)} gpu-lets were given to one process under MPS: expected 1")
        return {gpu_let.name: self.captured_stream("only", self._stream) for gpu_let in gpu_lets}


def _under_mps(device: int) -> bool:
    driver = ctypes.CDLL("libcuda.so.1")
    enabled = ctypes.c_int()
    return driver.cuDeviceGetAttribute(ctypes.byref(enabled), MPS_ENABLED, device) == 0 and enabled.value == 1


def create(options: BackendOptions) -> MpsBackend:
    return MpsBackend(options)
