"""What is loaded into programs asks nothing of libc that glibc 2.17 does not have.

Read from the objects, because what a compiler's own static runtime asks for is that compiler's affair: the released
libraries are linked with one whose runtime asks for nothing newer, and `make wheel-test` reads those.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[3]
FLOOR = (2, 17)
# The headers of a younger libc put these in the place of older ones; the headers for 2.17 do not.
BY_HEADERS = {"fstat", "__libc_single_threaded", "__isoc23_strtol", "__isoc23_strtoul"}


def _undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}


def _first_versions() -> dict[str, tuple[int, ...]]:
    """The first glibc that had each symbol, as this machine's glibc says: it keeps the versions of all before it."""
    mapped = Path("/proc/self/maps").read_text()
    libc = next((Path(found) for found in re.findall(r"/\S+/libc\.so\.6|/\S+/libc-2\S+\.so", mapped)), None)
    if libc is None:
        pytest.skip("this machine's libc is not glibc")
    first: dict[str, tuple[int, ...]] = {}
    libraries = [path for pattern in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux*")
                 for path in libc.parent.glob(pattern)]  # fmt: skip
    for library in libraries:
        with library.open("rb") as file:
            elf = ELFFile(file)
            names = {
                d["vd_ndx"]: next(aux).name for d, aux in elf.get_section_by_name(".gnu.version_d").iter_versions()
            }
            versions = elf.get_section_by_name(".gnu.version")
            for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
                version = versions.get_symbol(index)["ndx"]
                name = names.get(version & 0x7FFF) if isinstance(version, int) else None
                if symbol["st_shndx"] == "SHN_UNDEF" or not (name and re.fullmatch(r"GLIBC_[\d.]+", name)):
                    continue
                number = tuple(map(int, name.removeprefix("GLIBC_").split(".")))
                first[symbol.name] = min(first.get(symbol.name, number), number)
    return first


@pytest.mark.parametrize("target", ["hook/CMakeFiles/gemhook_objects.dir", "batch/CMakeFiles/gembatch.dir"])
def test_nothing_newer_than_the_oldest_libc_is_called(target: str) -> None:
    objects = list((ROOT / "build/native/native" / target).rglob("*.o"))
    assert objects, f"{target} is not built: run `make native`"
    first = _first_versions()
    assert first["getrandom"] == (2, 25)
    newer = {
        f"{path.name}: {name} (glibc {'.'.join(map(str, first[name]))})"
        for path in objects
        for name in _undefined(path) - BY_HEADERS
        if first.get(name, FLOOR) > FLOOR
    }
    assert not newer
