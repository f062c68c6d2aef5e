"""The library looks like driver 580 from outside: names, and how cuGetProcAddress resolves every one of them."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DRIVER = json.loads((ROOT / "native/sim/driver-580.json").read_text())


def test_generated_file_is_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "tools/generate_exports.py", "--check"], check=True)


def test_every_name_is_exported_and_nothing_else(library_path: Path) -> None:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library_path], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in text.splitlines()}
    ours = {name for name in names if name.startswith("gemletSim")}
    assert names - ours == set(DRIVER["exported"])
    assert len(ours) == 5


def test_no_two_names_share_an_address(library: ctypes.CDLL) -> None:
    addresses = {ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in DRIVER["exported"]}
    assert len(addresses) == len(DRIVER["exported"])


def expected(name: str, version: int, flag: int) -> tuple[int, int, str | None]:
    """What driver 580 answers: CUresult, query status, symbol."""
    by_flag = DRIVER["proc_address"][name]
    row: tuple[int, int, str | None] = (0, 1, None)
    for since, error, status, symbol in by_flag.get(str(flag), by_flag["1"]):
        if since <= version:
            row = (error, status, symbol)
    return row


def test_whole_proc_address_table(library: ctypes.CDLL) -> None:
    found, status = ctypes.c_void_p(), ctypes.c_int()
    address = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in DRIVER["exported"]}
    calls = 0
    for name in DRIVER["proc_address"]:
        for version in DRIVER["versions"]:
            for flag in (1, 2):
                error = library.cuGetProcAddress_v2(
                    name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flag), ctypes.byref(status)
                )
                want_error, want_status, symbol = expected(name, version, flag)
                want = address[symbol] if symbol else None
                assert (error, status.value, found.value) == (want_error, want_status, want), (name, version, flag)
                calls += 1
    assert calls == 479 * 39 * 2


def test_flag_zero_is_the_legacy_stream(library: ctypes.CDLL) -> None:
    plain, legacy = ctypes.c_void_p(), ctypes.c_void_p()
    for flag, found in ((0, plain), (1, legacy)):
        assert (
            library.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(found), 13000, ctypes.c_uint64(flag), None) == 0
        )
    assert plain.value == legacy.value is not None


def test_unknown_name_and_absurd_version(library: ctypes.CDLL) -> None:
    found, status = ctypes.c_void_p(1), ctypes.c_int(7)
    assert (
        library.cuGetProcAddress_v2(b"cuNonsense", ctypes.byref(found), 13000, ctypes.c_uint64(0), ctypes.byref(status))
        == 0
    )
    assert (found.value, status.value) == (None, 1)
    assert (
        library.cuGetProcAddress_v2(b"cuInit", ctypes.byref(found), 99999, ctypes.c_uint64(0), ctypes.byref(status))
        == 1
    )
    assert library.cuGetProcAddress(b"cuNonsense", ctypes.byref(found), 13000, ctypes.c_uint64(0)) == 500


def test_what_is_not_simulated_says_so_once(library_path: Path) -> None:
    script = "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); print(c.cuTexRefCreate(None), c.cuTexRefCreate(None))"
    done = subprocess.run([sys.executable, "-c", script, library_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["801", "801"]
    assert done.stderr == "gemlet-sim: cuTexRefCreate is not simulated\n"
