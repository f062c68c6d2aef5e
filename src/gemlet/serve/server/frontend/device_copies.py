"""Opens the CUDA handles of clients and copies, by the driver: in the process of device_memory.py alone."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, NamedTuple

from gemlet.serve.dispatch.call import Refusal

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Mapped(NamedTuple):
    """Where a region is here. ``context``: a CUcontext."""

    context: ctypes.c_void_p
    address: int
    nbytes: int


_mapped: dict[int, _Mapped] = {}
_contexts: dict[int, ctypes.c_void_p] = {}  # by device


def open_handle(number: int, handle: bytes, device: int, nbytes: int) -> None:
    """Raises Refusal unless ``nbytes`` of memory are behind the handle."""
    if len(handle) != HANDLE_BYTES:
        raise Refusal("invalid", f"a CUDA IPC handle has {HANDLE_BYTES} bytes, this one has {len(handle)}")
    context = _enter(device)
    address = ctypes.c_uint64()
    given = _Handle.from_buffer_copy(handle)
    _ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    try:
        _ask("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        left = base.value + size.value - address.value
        if nbytes > left:
            raise Refusal("invalid", f"the memory behind the handle has {left} bytes, fewer than {nbytes}")
    except Refusal:
        _ask("cuIpcCloseMemHandle", address)
        raise
    _mapped[number] = _Mapped(context, address.value, nbytes)


def close_handle(number: int) -> None:
    """Never raises: a region that cannot be closed goes with the process."""
    found = _mapped.pop(number, None)
    if found is not None:
        cuda = _driver()
        cuda.cuCtxSetCurrent(found.context)
        cuda.cuIpcCloseMemHandle(ctypes.c_uint64(found.address))


def read(number: int, offset: int, path: str) -> None:
    """Fills the file at ``path`` from there on. Raises Refusal."""
    _copy(number, offset, path, lambda at, host, nbytes: _ask("cuMemcpyDtoH_v2", host, at, nbytes))


def write(number: int, offset: int, path: str) -> None:
    """Puts what the file has there. Raises Refusal."""
    _copy(number, offset, path, lambda at, host, nbytes: _ask("cuMemcpyHtoD_v2", at, host, nbytes))


def _copy(number: int, offset: int, path: str, act: Any) -> None:
    found = _mapped.get(number)
    if found is None:
        raise Refusal("unknown", "the region's device memory is gone: register it again")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    nbytes = os.fstat(descriptor).st_size
    staged = mmap.mmap(descriptor, nbytes)
    os.close(descriptor)
    host = ctypes.c_ubyte.from_buffer(staged)
    try:
        if not 0 <= offset <= found.nbytes - nbytes:
            raise Refusal("invalid", f"{offset} + {nbytes} bytes are not within a region of {found.nbytes}")
        _ask("cuCtxSetCurrent", found.context)
        try:
            act(ctypes.c_uint64(found.address + offset), ctypes.byref(host), ctypes.c_size_t(nbytes))
            _ask("cuCtxSynchronize")  # of pageable memory a copy to the device returns before it is there
        except Refusal:
            if _driver().cuCtxSynchronize():
                os._exit(1)  # the error stays in this context
            raise
    finally:
        del host
        staged.close()


def _enter(device: int) -> ctypes.c_void_p:
    """Makes the device's context the current one."""
    context = _contexts.get(device)
    if context is None:
        _ask("cuInit", ctypes.c_uint(0))
        handle = ctypes.c_int()
        _ask("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        context = ctypes.c_void_p()
        _ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        _contexts[device] = context
    _ask("cuCtxSetCurrent", context)
    return context


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Refusal("unsupported", "CUDA shared memory needs a device: there is no NVIDIA driver here") from None


def _ask(name: str, *given: Any) -> None:
    """Calls the driver. Raises Refusal."""
    cuda = _driver()
    error = getattr(cuda, name)(*given)
    if error:
        words = ctypes.c_char_p()
        cuda.cuGetErrorName(error, ctypes.byref(words))
        raise Refusal("invalid", f"{name} says {(words.value or b'CUDA error %d' % error).decode()}")
