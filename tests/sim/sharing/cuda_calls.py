"""What the programs of this folder have in common; they run as scripts, beside which it lies."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver as cu

# The simulated driver knows both by their names.
PTX = b""".version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
.visible .entry meet(.param .u64 address, .param .u64 ranks, .param .u64 number) { ret; }
\0"""


def check(result: tuple) -> object:  # type: ignore[type-arg]
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if len(values) == 1 else values


def load() -> object:
    """The kernels, as a module of the current context."""
    return check(cu.cuModuleLoadData(PTX))


def kernel(module: object, name: str) -> object:
    return check(cu.cuModuleGetFunction(module, name.encode()))


def launch(function: object, stream: object, *values: int) -> None:
    check(cu.cuLaunchKernel(function, 132, 1, 1, 128, 1, 1, 0, stream, (values, (ctypes.c_uint64,) * len(values)), 0))
