"""NVIDIA's Python binding of the CUDA runtime, as far as tritonclient needs it, over that of the driver.

The runtime asks the driver for tables that NVIDIA does not document, so it does not run on the simulated machine.
"""

from __future__ import annotations

import ctypes
import sys
import types

import cuda.bindings
from cuda.bindings import driver

SUCCESS = driver.CUresult.CUDA_SUCCESS
_current: dict[str, int] = {"device": -1}


def _set_device(device):
    (error,) = driver.cuInit(0)
    assert error == SUCCESS
    error, handle = driver.cuDeviceGet(device)
    if error == SUCCESS:
        error, context = driver.cuDevicePrimaryCtxRetain(handle)
    if error == SUCCESS:
        (error,) = driver.cuCtxSetCurrent(context)
        _current["device"] = device
    return (error,)


def _get_device():
    if _current["device"] < 0:
        _set_device(0)
    return SUCCESS, _current["device"]


def _malloc(nbytes):
    error, address = driver.cuMemAlloc(nbytes)
    return error, int(address)


def install():
    """Puts it in the place of `cuda.bindings.runtime`."""
    module = types.ModuleType("cuda.bindings.runtime")
    module.CUDA_IPC_HANDLE_SIZE = driver.CU_IPC_HANDLE_SIZE
    module.cudaIpcMemHandle_t = driver.CUipcMemHandle
    module.cudaError_t = type("cudaError_t", (), {})
    module.cudaDeviceAttr = types.SimpleNamespace(
        cudaDevAttrUnifiedAddressing=driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
    )
    module.cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyDefault=None)
    module.cudaSetDevice, module.cudaGetDevice, module.cudaMalloc = _set_device, _get_device, _malloc
    module.cudaFree = driver.cuMemFree
    module.cudaIpcGetMemHandle = driver.cuIpcGetMemHandle
    module.cudaDeviceGetAttribute = driver.cuDeviceGetAttribute
    module.cudaStreamCreate = lambda: driver.cuStreamCreate(0)
    module.cudaStreamDestroy = driver.cuStreamDestroy
    module.cudaStreamSynchronize = driver.cuStreamSynchronize
    module.cudaMemcpyAsync = _copy
    sys.modules["cuda.bindings.runtime"] = module
    cuda.bindings.runtime = module


def _copy(to, of, nbytes, _kind, stream):
    return driver.cuMemcpyAsync(_at(to), _at(of), nbytes, stream)


def _at(place):
    """An address, also of a ctypes array."""
    return place if isinstance(place, int) else ctypes.addressof(place)
