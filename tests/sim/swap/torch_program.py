"""A program that trains on command: 4 MiB of tensors, and 24 MiB that PyTorch has cached and does not use then.

One answer a line: `step` the iterations that are done; it ends with an error if a tensor is not what it was.
"""

from __future__ import annotations

import ctypes
import sys

import torch  # the double that test_torch.py makes

MIB = 1 << 20
TENSORS, CACHED = 4 * MIB, 24 * MIB
cuda = ctypes.CDLL("libcuda.so.1")


def check(name: str, *arguments: object) -> None:
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: {status}")


def fill(start: int, value: int, size: int) -> None:
    check("cuMemsetD32_v2", ctypes.c_uint64(start), ctypes.c_uint32(value), ctypes.c_size_t(size // 4))


def expect(start: int, value: int, size: int) -> None:
    found = ctypes.create_string_buffer(size)
    check("cuMemcpyDtoH_v2", found, ctypes.c_uint64(start), ctypes.c_size_t(size))
    if found.raw != value.to_bytes(4, "little") * (size // 4):
        raise SystemExit(f"something else than {value} at {start:#x}")


context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
check("cuInit", 0)
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
check("cuCtxSetCurrent", context)
check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(TENSORS + CACHED))
at = pointer.value
blocks = [{"size": TENSORS, "state": "active_allocated"}, {"size": CACHED, "state": "inactive"}]
torch.segments.append({"address": at, "segment_pool_id": torch.pool, "is_expandable": False, "blocks": blocks})
done = 0
fill(at, done, TENSORS)
print("ready", flush=True)
for _ in sys.stdin:
    fill(at + TENSORS, 1000 + done, CACHED)  # activations
    expect(at, done, TENSORS)
    expect(at + TENSORS, 1000 + done, CACHED)
    done += 1
    fill(at, done, TENSORS)
    check("cuCtxSynchronize")
    torch.step()
    print(done, flush=True)
