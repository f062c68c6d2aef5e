"""Imported by the test programs: cuda-bindings, unmodified, with the boilerplate of a driver-API program."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from cuda.bindings import driver as cu

__all__ = [
    "MIB",
    "WIDE",
    "check",
    "code",
    "copy_from",
    "copy_to",
    "ctypes",
    "cu",
    "kernel",
    "launch",
    "open_device",
    "os",
    "sys",
    "time",
    "timed",
    "truth",
]

MIB = 1 << 20
WIDE = {"blocks": 264, "threads": 1024}  # fills an H200: 132 multiprocessors of 2048 threads
PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) { ret; }
.visible .entry fill(.param .u64 address, .param .u64 bytes, .param .u64 value) { ret; }
.visible .entry add(.param .u64 address, .param .u64 count, .param .u64 value) { ret; }
.visible .entry unknown(.param .u32 a, .param .align 8 .b8 b[24]) { ret; }
\0"""


def check(result: tuple[Any, ...]) -> Any:
    """The values of a call that must succeed."""
    error, *values = result
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else tuple(values)


def code(result: tuple[Any, ...]) -> int:
    """The CUresult of a call that need not."""
    return int(result[0])


def open_device() -> Any:
    """Initialises the driver and makes device 0's primary context current."""
    check(cu.cuInit(0))
    context = check(cu.cuDevicePrimaryCtxRetain(0))
    check(cu.cuCtxSetCurrent(context))
    return context


def kernel(name: str) -> Any:
    """A kernel of the contract in the current context."""
    module = check(cu.cuModuleLoadData(PTX))
    return check(cu.cuModuleGetFunction(module, name.encode()))


def launch(function: Any, *arguments: int, stream: Any = 0, blocks: int = 1, threads: int = 1) -> Any:
    """Launches with .u64 arguments; the raw result."""
    values = tuple(int(a) for a in arguments)
    return cu.cuLaunchKernel(
        function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, (ctypes.c_uint64,) * len(values)), 0
    )


def timed(function: Any, *arguments: int, **how: Any) -> float:
    """Milliseconds of device time from the start of a kernel to its end, by events."""
    start, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
    check(launch(function, 200_000_000, blocks=1))  # so that the start event waits on the device
    check(cu.cuEventRecord(start, 0))
    check(launch(function, *arguments, **how))
    check(cu.cuEventRecord(end, 0))
    check(cu.cuEventSynchronize(end))
    return float(check(cu.cuEventElapsedTime(start, end)))


def copy_to(address: Any, data: bytes) -> None:
    """Host to device, at once."""
    check(cu.cuMemcpyHtoD(address, data, len(data)))


def copy_from(address: Any, count: int) -> bytes:
    """Device to host, at once."""
    out = bytearray(count)
    check(cu.cuMemcpyDtoH(out, address, count))
    return bytes(out)


def truth(function: str, pid: int) -> int:
    """The simulation's own account of a process on device 0."""
    value = ctypes.c_ulonglong()
    library = ctypes.CDLL("libcuda.so.1")
    assert getattr(library, function)(0, ctypes.c_ulonglong(pid), ctypes.byref(value)) == 0
    return value.value
