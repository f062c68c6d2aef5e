"""Run by `gemlet doctor` with the hook preloaded: prints which library answers for a launch, by both lookup routes.

One line per route, `ROUTE PATH`. Nothing is initialised, so no device is needed, only a libcuda.so.1.
"""

from __future__ import annotations

import ctypes


class _Where(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("symbol", ctypes.c_void_p),
    )


def library_of(address: int | None) -> str:
    """Path of the library that holds ``address``."""
    where = _Where()
    process = ctypes.CDLL(None)
    if not address or not process.dladdr(ctypes.c_void_p(address), ctypes.byref(where)):
        return "nothing"
    return (where.path or b"?").decode(errors="replace")


def main() -> None:
    """Prints the two lines."""
    cuda = ctypes.CDLL("libcuda.so.1")
    by_dlsym = ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p).value
    print("dlsym", library_of(by_dlsym))
    found = ctypes.c_void_p()
    status = ctypes.c_int()
    cuda.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(found), 12000, ctypes.c_uint64(0), ctypes.byref(status))
    print("cuGetProcAddress", library_of(found.value))


if __name__ == "__main__":
    main()
