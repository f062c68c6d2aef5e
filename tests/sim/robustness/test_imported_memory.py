"""Memory that another process made counts for the one that imports it, whether or not that ever maps it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

SIZE = 96 * MIB
PROGRAM = f"""
import ctypes, os, socket
from ctypes import CDLL, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ulonglong, c_void_p
cuda = CDLL("libcuda.so.1")
here, there = socket.socketpair()
maker = os.fork() == 0
cuda.cuInit(0)
context = c_void_p()
assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
if maker:
    here.close()
    properties, handle, descriptor = (c_ubyte * 32)(), c_ulonglong(), c_int()
    for place, value in ((0, 1), (4, 1), (8, 1)):  # pinned; exported as a descriptor; on a device, the first one
        c_int.from_buffer(properties, place).value = value
    assert cuda.cuMemCreate(byref(handle), c_size_t({SIZE}), properties, c_ulonglong(0)) == 0
    assert cuda.cuMemExportToShareableHandle(byref(descriptor), handle, 1, c_ulonglong(0)) == 0
    socket.send_fds(there, [b"x"], [descriptor.value])
    there.recv(1)
    os._exit(0)
there.close()
_, [descriptor], _, _ = socket.recv_fds(here, 1, 1)

def imported():
    handle = c_ulonglong()
    return cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), 1), handle

def take(size):
    pointer = c_uint64()
    result = cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))
    if result == 0:
        cuda.cuMemFree_v2(pointer)
    return result

def map_a_part(handle):
    at = c_uint64()
    assert cuda.cuMemAddressReserve(byref(at), c_size_t({SIZE}), c_size_t(0), c_uint64(0), c_ulonglong(0)) == 0
    assert cuda.cuMemMap(at, c_size_t({SIZE} // 3), c_size_t(0), handle, c_ulonglong(0)) == 0
    return at

result, handle = imported()
print(result, imported()[0], take({SIZE}), take({SIZE} // 2), flush=True)
at = map_a_part(handle)
assert cuda.cuMemRelease(handle) == 0
print(take({SIZE}), take({SIZE} // 2), flush=True)
assert cuda.cuMemUnmap(at, c_size_t({SIZE} // 3)) == 0
print(take({SIZE}), flush=True)
input()
"""


def test_an_import_counts_as_a_whole_until_nothing_refers_to_it(served: Served, machine: Machine) -> None:
    served.server.set_group("g", memory=2 * CONTEXT + SIZE + SIZE * 3 // 2)
    one = machine.start("g", "-c", PROGRAM, command=sys.executable)
    assert one.line() == "0 2 2 0", "once, and not twice"
    assert one.line() == "2 0", "as long as a part is mapped"
    assert one.line() == "0"
    eventually(lambda: served.used("g") == 2 * CONTEXT + SIZE)
    one.tell("")
    assert one.end()[0] == 0
