"""Limits of a context that stand for device memory: they count against the group's limit as soon as they are raised."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, eventually

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

STACK, FIFO, HEAP = 0, 1, 2
ROOM = 256 * MIB
PROGRAM = f"""
from ctypes import CDLL, byref, c_int, c_size_t, c_uint64, c_void_p
import sys
cuda = CDLL("libcuda.so.1")
limit, step = int(sys.argv[1]), int(sys.argv[2])
cuda.cuInit(0)
context, pointer, default = c_void_p(), c_uint64(), c_size_t()
assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
cuda.cuCtxGetLimit(byref(default), limit)

def put(value):
    return cuda.cuCtxSetLimit(limit, c_size_t(value))

def take(size):
    return cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))

print(put(default.value + 3 * step), take({ROOM} // 2), take({ROOM} // 4), flush=True)
cuda.cuMemFree_v2(pointer)
print(put(default.value + 4 * step), put(default.value + 5 * step), flush=True)
print(put(default.value), put(default.value + 4 * step), take({ROOM}), flush=True)
input()
print(cuda.cuCtxDestroy_v2(context), flush=True)
input()
"""


@pytest.mark.parametrize(("limit", "steps"), [(HEAP, ROOM // 4), (FIFO, ROOM // 4), (STACK, ROOM // 4 // (132 * 2048))])
def test_a_raised_limit_counts_at_once_until_its_context_is_gone(
    served: Served, machine: Machine, limit: int, steps: int
) -> None:
    served.server.set_group("g", memory=CONTEXT + ROOM)
    one = machine.start("g", "-c", PROGRAM, limit, steps, command=sys.executable)
    assert one.line() == "0 2 0", "three of four parts for the limit leave a fourth"
    assert one.line() == "0 2", "all for the limit, and no more"
    assert one.line() == "0 0 2", "what was paid for stays so"
    eventually(lambda: served.used("g") > CONTEXT + ROOM - 4 * MIB)
    one.tell("")
    assert one.line() == "0"
    eventually(lambda: served.used("g") < CONTEXT)
    one.tell("")
    assert one.end()[0] == 0
