"""A pool that is destroyed while it is in use counts for its group until the driver has given its memory back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

ROOM = 256 * MIB
COMMON = """
from ctypes import CDLL, CFUNCTYPE, byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from threading import Event
cuda = CDLL("libcuda.so.1")
cuda.cuInit(0)
context, stream = c_void_p(), c_void_p()
assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
assert cuda.cuStreamCreate(byref(stream), 1) == 0
go_on = Event()
wait = CFUNCTYPE(None, c_void_p)(lambda _: go_on.wait())

def pool():
    properties = (c_ubyte * 88)()
    for place, value in ((0, 1), (8, 1)):  # pinned; on a device, the first one
        c_int.from_buffer(properties, place).value = value
    made = c_void_p()
    assert cuda.cuMemPoolCreate(byref(made), properties) == 0
    return made

def taken_from(pool, size):
    pointer = c_uint64()
    assert cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, stream) == 0
    return pointer

def take(size):
    pointer = c_uint64()
    result = cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))
    go_on.set()  # a free waits for all streams
    if result == 0:
        cuda.cuMemFree_v2(pointer)
    return result
"""
PENDING = f"""{COMMON}
one = pool()
assert cuda.cuDeviceSetMemPool(0, one) == 0
pointer = taken_from(one, {ROOM // 2})
assert cuda.cuLaunchHostFunc(stream, wait, None) == 0
assert cuda.cuMemFreeAsync(pointer, stream) == 0
print(cuda.cuMemPoolDestroy(one), cuda.cuMemPoolDestroy(one), take({ROOM}), flush=True)
current, default = c_void_p(), c_void_p()
cuda.cuDeviceGetMemPool(byref(current), 0)
cuda.cuDeviceGetDefaultMemPool(byref(default), 0)
assert current.value == default.value
assert cuda.cuStreamSynchronize(stream) == 0
print(take({ROOM}), flush=True)
input()
"""
IDLE = f"""{COMMON}
for _ in range(20):
    one, hold = pool(), Event()
    wait = CFUNCTYPE(None, c_void_p)(lambda _: hold.wait())
    pointer = taken_from(one, {ROOM})
    assert cuda.cuLaunchHostFunc(stream, wait, None) == 0
    assert cuda.cuMemFreeAsync(pointer, stream) == 0
    assert cuda.cuMemPoolDestroy(one) == 0
    hold.set()
    assert cuda.cuStreamSynchronize(stream) == 0
    print("idle", flush=True)
    input()
"""
ALLOCATED = f"""{COMMON}
for _ in range(20):
    one = pool()
    pointers = [taken_from(one, {ROOM // 4}) for _ in range(2)]
    assert cuda.cuMemPoolDestroy(one) == 0
    for pointer in pointers:
        assert take({ROOM}) == 2
        assert cuda.cuMemFreeAsync(pointer, stream) == 0
        assert cuda.cuStreamSynchronize(stream) == 0
    assert take({ROOM}) == 0
print("done", flush=True)
input()
"""


def test_frees_that_are_not_complete_count(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=CONTEXT + ROOM)
    one = machine.start("g", "-c", PENDING, command=sys.executable)
    assert one.line() == "0 1 2"
    assert one.line() == "0"
    eventually(lambda: served.used("g") == CONTEXT)
    one.tell("")
    assert one.end()[0] == 0


def test_allocations_that_outlive_their_pool_count(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=CONTEXT + ROOM)
    one = machine.start("g", "-c", ALLOCATED, command=sys.executable)
    assert one.line() == "done", one.end()
    eventually(lambda: served.used("g") == CONTEXT)
    one.tell("")
    assert one.end()[0] == 0


def test_memory_goes_back_while_the_program_is_idle(served: Served, machine: Machine) -> None:
    """Others of its group, and of the device, wait for it."""
    served.server.set_group("g", memory=CONTEXT + ROOM)
    one = machine.start("g", "-c", IDLE, command=sys.executable)
    for _ in range(20):
        assert one.line() == "idle", one.end()
        eventually(lambda: served.used("g") == CONTEXT)
        one.tell("")
    assert one.end()[0] == 0
