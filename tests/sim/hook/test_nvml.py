"""NVML shows the group's limit to processes of a group, and the machine to all others."""

from __future__ import annotations

import sys
from collections.abc import Callable

Lines = Callable[..., list[str]]
QUERY = """
import ctypes
class V1(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class V2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
one, two = V1(), V2()
assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)) == 0
assert nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)) == 0
print(one.total >> 20, one.used >> 20, one.free >> 20)
print(two.total >> 20, two.used >> 20, two.free >> 20)
"""
ALLOCATE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64 << 20)) == 0
"""


def test_a_process_of_no_group_sees_the_machine(lines: Lines) -> None:
    assert lines(sys.executable, "-c", QUERY) == ["81920 1024 80896", "81920 512 80896"]


def test_before_cuda_starts(lines: Lines) -> None:
    limit = {"GEMLET_TEST_LIMIT": str(8 << 30)}
    assert lines(sys.executable, "-c", QUERY, env=limit) == ["8192 0 8192", "8192 0 8192"]


def test_with_memory_in_use(lines: Lines) -> None:
    limit = {"GEMLET_TEST_LIMIT": str(8 << 30)}
    assert lines(sys.executable, "-c", ALLOCATE + QUERY, env=limit) == ["8192 64 8128", "8192 64 8128"]


def test_above_the_limit_nothing_wraps_around(lines: Lines) -> None:
    shrink = "import os, ctypes\nctypes.CDLL(None).setenv(b'GEMLET_TEST_LIMIT', str(32 << 20).encode(), 1)\n"
    limit = {"GEMLET_TEST_LIMIT": str(8 << 30)}
    assert lines(sys.executable, "-c", ALLOCATE + shrink + QUERY, env=limit) == ["32 32 0", "32 32 0"]
