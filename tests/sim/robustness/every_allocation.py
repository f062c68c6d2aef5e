"""One program that takes memory by every function that there is for it, for test_every_allocation.py.

python every_allocation.py NAME BYTES ROUNDS: prints the driver's results for BYTES (all that its group has left), for a
block more beside that, and whether the same worked in so many rounds of taking and freeing.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_ushort, c_void_p
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 2 << 20
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL


class Array(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class Array3D(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int), ("channels", c_uint),
        ("flags", c_uint),
    )  # fmt: skip


class OldArray(ctypes.Structure):
    _fields_ = (("width", c_uint), ("height", c_uint), ("format", c_int), ("channels", c_uint))


class OldArray3D(ctypes.Structure):
    _fields_ = (
        ("width", c_uint), ("height", c_uint), ("depth", c_uint), ("format", c_int), ("channels", c_uint),
        ("flags", c_uint),
    )  # fmt: skip


class Location(ctypes.Structure):
    _fields_ = (("kind", c_int), ("id", c_int))


class VirtualProperties(ctypes.Structure):
    _fields_ = (
        ("kind", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p),
        ("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4),
    )  # fmt: skip


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("kind", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("most", c_size_t),
        ("usage", c_ushort), ("reserved", c_ubyte * 54),
    )  # fmt: skip


cuda: Any = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    if result != 0:
        raise MemoryError(result)


def taken(handle: Any, result: int) -> Any:
    check(result)
    return handle


def allocated(name: str, *arguments: object) -> c_uint64:
    pointer = c_uint64()
    return taken(pointer, cuda[name](byref(pointer), *arguments))


def old_allocated(name: str, *arguments: object) -> c_uint:
    pointer = c_uint()
    return taken(pointer, cuda[name](byref(pointer), *arguments))


def pitched(name: str, size: int) -> c_uint64:
    pitch = c_size_t()
    return allocated(name, byref(pitch), c_size_t(1 << 20), c_size_t(size >> 20), c_uint(4))


def array(name: str, description: Any) -> c_void_p:
    handle = c_void_p()
    return taken(handle, cuda[name](byref(handle), byref(description)))


def mipmapped(size: int) -> c_void_p:
    handle = c_void_p()
    return taken(handle, cuda.cuMipmappedArrayCreate(byref(handle), byref(volume(Array3D, size)), c_uint(1)))


def square(kind: Any, size: int) -> Any:
    return kind(width=1024, height=size // 4096, format=FLOAT, channels=1)


def volume(kind: Any, size: int) -> Any:
    return kind(width=512, height=512, depth=size >> 20, format=FLOAT, channels=1, flags=0)


def virtual(size: int) -> c_ulonglong:
    handle, properties = c_ulonglong(), VirtualProperties(kind=1, location=Location(1, 0))
    return taken(handle, cuda.cuMemCreate(byref(handle), c_size_t(size), byref(properties), c_ulonglong(0)))


def pool() -> c_void_p:
    handle = c_void_p()
    return taken(handle, cuda.cuMemPoolCreate(byref(handle), byref(PoolProperties(kind=1, location=Location(1, 0)))))


def freed_in_order(pointer: c_uint64) -> None:
    check(cuda.cuMemFreeAsync(pointer, None))
    check(cuda.cuStreamSynchronize(None))
    default = c_void_p()
    check(cuda.cuDeviceGetDefaultMemPool(byref(default), 0))
    check(cuda.cuMemPoolTrimTo(default, c_size_t(0)))


def from_pool(name: str, size: int) -> tuple[c_void_p, c_uint64]:
    made = pool()
    try:
        return made, allocated(name, c_size_t(size), made, None)
    except MemoryError:
        check(cuda.cuMemPoolDestroy(made))
        raise


def pool_freed(both: tuple[c_void_p, c_uint64]) -> None:
    check(cuda.cuMemFreeAsync(both[1], None))
    check(cuda.cuStreamSynchronize(None))
    check(cuda.cuMemPoolDestroy(both[0]))


def bytes_of(size: int) -> c_size_t:
    return c_size_t(size)


def array_destroyed(handle: c_void_p) -> None:
    check(cuda.cuArrayDestroy(handle))


def by(name: str) -> Callable[[Any], None]:
    return lambda handle: check(cuda[name](handle))


WAYS: dict[str, tuple[Callable[[int], Any], Callable[[Any], None]]] = {
    "cuMemAlloc_v2": (lambda size: allocated("cuMemAlloc_v2", bytes_of(size)), by("cuMemFree_v2")),
    "cuMemAlloc": (lambda size: old_allocated("cuMemAlloc", c_uint(size)), by("cuMemFree")),
    "cuMemAllocPitch_v2": (lambda size: pitched("cuMemAllocPitch_v2", size), by("cuMemFree_v2")),
    "cuMemAllocManaged": (
        lambda size: allocated("cuMemAllocManaged", bytes_of(size), c_uint(GLOBAL)), by("cuMemFree_v2"),
    ),
    "cuMemAllocAsync": (lambda size: allocated("cuMemAllocAsync", bytes_of(size), None), freed_in_order),
    "cuMemAllocAsync_ptsz": (lambda size: allocated("cuMemAllocAsync_ptsz", bytes_of(size), None), freed_in_order),
    "cuMemAllocFromPoolAsync": (lambda size: from_pool("cuMemAllocFromPoolAsync", size), pool_freed),
    "cuMemAllocFromPoolAsync_ptsz": (lambda size: from_pool("cuMemAllocFromPoolAsync_ptsz", size), pool_freed),
    "cuArrayCreate_v2": (lambda size: array("cuArrayCreate_v2", square(Array, size)), array_destroyed),
    "cuArrayCreate": (lambda size: array("cuArrayCreate", square(OldArray, size)), array_destroyed),
    "cuArray3DCreate_v2": (lambda size: array("cuArray3DCreate_v2", volume(Array3D, size)), array_destroyed),
    "cuArray3DCreate": (lambda size: array("cuArray3DCreate", volume(OldArray3D, size)), array_destroyed),
    "cuMipmappedArrayCreate": (mipmapped, by("cuMipmappedArrayDestroy")),
    "cuMemCreate": (virtual, by("cuMemRelease")),
}  # fmt: skip


def result_of(act: Callable[[], Any]) -> int:
    try:
        act()
    except MemoryError as error:
        return int(error.args[0])
    return 0


def main() -> None:
    name, size, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    take, free = WAYS[name]
    context = c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    cuda.cuMemFree_v2.argtypes = [c_uint64]
    held = take(size)
    beside = {way: result_of(lambda way=way: WAYS[way][1](WAYS[way][0](BLOCK))) for way in WAYS}  # type: ignore[misc]
    free(held)
    for _ in range(rounds):
        free(take(size))
    print(*[way for way, result in beside.items() if result != 2], sep=",", end=";")
    print(result_of(lambda: take(size + BLOCK)), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
