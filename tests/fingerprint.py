"""Runs the kernel of native/hook/swap/fingerprint.cpp on whatever libcuda.so.1 is found, and compares it with the same
sums in Python. Prints `same` or what differs; tests/sim/driver runs it on the simulated machine, tests/gpu on a GPU."""

from __future__ import annotations

import ctypes
import random
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "native/hook/swap/fingerprint.cpp"
PART = 512 << 10
WORDS = PART // 8
PARTS = 3
KEYS = (0x0123456789ABCDEF, 0x9E3779B97F4A7C15, 0xFEDCBA9876543210, 0xD1B54A32D192ED03)
LOW = (1 << 64) - 1


def expected(words: list[int]) -> tuple[int, int]:
    """The two sums over one part."""
    key_a, step_a, key_b, step_b = KEYS
    a = b = 0
    for place, word in enumerate(words):
        x = (word + key_a + place * step_a) & LOW
        x = ((x ^ x >> 32) * 0xBF58476D1CE4E5B9) & LOW
        x = ((x ^ x >> 29) * 0x94D049BB133111EB) & LOW
        a += x ^ x >> 32
        y = ((word ^ key_b) + place * step_b) & LOW
        y = ((y ^ y >> 33) * 0xFF51AFD7ED558CCD) & LOW
        y = ((y ^ y >> 33) * 0xC4CEB9FE1A85EC53) & LOW
        b += y ^ y >> 33
    return a & LOW, b & LOW


def main() -> None:
    """Three parts: random words, zeros, and zeros of which one word differs."""
    found = re.search(r'R"\((.*?)\)"', SOURCE.read_text(), re.DOTALL)
    assert found
    program = found.group(1).encode()
    dice = random.Random(3)
    content = [dice.getrandbits(64) for _ in range(WORDS)] + [0] * (2 * WORDS)
    content[2 * WORDS + 12345] = 1
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p

    def must(result: int) -> None:
        assert result == 0, result

    context, module, kernel = pointer(), pointer(), pointer()
    data, out = ctypes.c_uint64(), ctypes.c_uint64()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(program)))
    must(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"gemlet_fingerprint"))
    must(cuda.cuMemAlloc_v2(ctypes.byref(data), ctypes.c_size_t(PARTS * PART)))
    must(cuda.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(PARTS * 16)))
    host = (ctypes.c_uint64 * len(content))(*content)
    must(cuda.cuMemcpyHtoD_v2(data, host, ctypes.c_size_t(PARTS * PART)))
    values = [data, out, *(ctypes.c_uint64(value) for value in (WORDS, *KEYS))]
    arguments = (pointer * len(values))(*(ctypes.addressof(value) for value in values))
    must(cuda.cuLaunchKernel(kernel, PARTS, 1, 1, 512, 1, 1, 0, None, arguments, None))
    sums = (ctypes.c_uint64 * (2 * PARTS))()
    must(cuda.cuMemcpyDtoH_v2(sums, out, ctypes.c_size_t(PARTS * 16)))
    got = [(sums[2 * i], sums[2 * i + 1]) for i in range(PARTS)]
    wanted = [expected(content[i * WORDS : (i + 1) * WORDS]) for i in range(PARTS)]
    print("same" if got == wanted else f"the device says {got}, not {wanted}")


if __name__ == "__main__":
    main()
