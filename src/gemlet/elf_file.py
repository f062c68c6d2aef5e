"""What the header and the dynamic section of an ELF file say. Reads a few hundred bytes; standard library only.

For 64-bit little-endian files, the only ones that the hook can be loaded into, everything is read; of others only what
they are.
"""

from __future__ import annotations

import os
import struct

from gemlet import paths

MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB = 1, 5
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
MOST_TEXT = 4096
HEADER_BYTES = 56  # a segment's
MOST_DYNAMIC = 1 << 16
MOST_RECORDS = 20_000  # of a file's tables together: a damaged one must not keep the reader


class NotElfError(ValueError):
    """The file is no ELF file, or one that ends before it should."""


class ElfFile:
    """An ELF file. ``bits``: 32 or 64; ``machine``: as uname(1) calls it; ``interpreter``: the loader it asks for.

    Raises OSError, and NotElfError if the file is not ELF.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = paths.open_regular(path)
        except paths.NotRegularError:
            raise NotElfError(f"{path} is no file") from None
        self._records = 0
        try:
            self._read()
        except (struct.error, IndexError, OverflowError):
            raise NotElfError(f"{path} is damaged") from None
        finally:
            os.close(self._file)

    bits: int
    machine: str
    interpreter: str | None = None
    needed: tuple[str, ...] = ()
    """The names of the libraries it is linked with."""
    required: frozenset[str] = frozenset()
    """The symbol versions it asks its libraries for, such as GLIBC_2.17."""
    defined: frozenset[str] = frozenset()
    """The symbol versions it offers."""

    def _read(self) -> None:
        start = os.pread(self._file, 64, 0)
        if start[:4] != b"\x7fELF":
            raise NotElfError("not an ELF file")
        self.bits = 64 if start[4] == 2 else 32
        order = "<" if start[5] == 1 else ">"
        (machine,) = struct.unpack_from(f"{order}H", start, 18)
        self.machine = MACHINES.get(machine, f"machine {machine}")
        if self.bits != 64 or order != "<":
            return
        (at,) = struct.unpack_from("<Q", start, 32)
        size, count = struct.unpack_from("<HH", start, 54)
        if size != HEADER_BYTES:
            raise IndexError(size)
        headers = os.pread(self._file, size * count, at)
        segments: list[tuple[int, ...]] = [
            struct.unpack_from("<IIQQQQ", headers, size * index) for index in range(count)
        ]
        self._loaded = [
            (address, bytes_, offset) for kind, _, offset, address, _, bytes_ in segments if kind == PT_LOAD
        ]
        for kind, _, offset, _, _, length in segments:
            if kind == PT_INTERP:
                self.interpreter = self._text(offset)
            if kind == PT_DYNAMIC:
                self._read_dynamic(os.pread(self._file, min(length, MOST_DYNAMIC), offset))

    def _read_dynamic(self, table: bytes) -> None:
        entries = [struct.unpack_from("<QQ", table, at) for at in range(0, len(table) - 15, 16)]
        values = dict(reversed(entries))  # the first of each tag
        if DT_STRTAB not in values:
            return
        texts = self._offset(values[DT_STRTAB])
        self.needed = tuple(self._text(texts + value) for tag, value in entries if tag == DT_NEEDED)
        if DT_VERNEED in values:
            self.required = frozenset(self._required(self._offset(values[DT_VERNEED]), values[DT_VERNEEDNUM], texts))
        if DT_VERDEF in values:
            self.defined = frozenset(self._defined(self._offset(values[DT_VERDEF]), values[DT_VERDEFNUM], texts))

    def _required(self, at: int, count: int, texts: int) -> list[str]:
        names = []
        for _ in range(count):
            _, uses, _, use, following = self._unpack("<HHIII", at)
            use += at
            for _ in range(uses):
                _, _, _, name, next_use = self._unpack("<IHHII", use)
                names.append(self._text(texts + name))
                use += next_use
            at += following
        return names

    def _defined(self, at: int, count: int, texts: int) -> list[str]:
        names = []
        for _ in range(count):
            _, _, _, _, _, first_name, following = self._unpack("<HHHHIII", at)
            (name,) = self._unpack("<I", at + first_name)
            names.append(self._text(texts + name))
            at += following
        return names

    def _offset(self, address: int) -> int:
        """Where in the file is what will be at ``address``."""
        for start, length, offset in self._loaded:
            if start <= address < start + length:
                return int(offset + address - start)
        raise IndexError(address)

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        """A record of a table."""
        self._records += 1
        if self._records > MOST_RECORDS:
            raise IndexError(self._records)
        return struct.unpack(form, os.pread(self._file, struct.calcsize(form), at))

    def _text(self, at: int) -> str:
        return os.pread(self._file, MOST_TEXT, at).split(b"\0")[0].decode(errors="replace")


def newest_glibc(versions: frozenset[str]) -> tuple[int, ...]:
    """The newest of the versions that are glibc's, as numbers: (2, 17). Empty if none is."""
    numbers = [name.removeprefix("GLIBC_").split(".") for name in versions if name.startswith("GLIBC_")]
    return max((tuple(map(int, parts)) for parts in numbers if all(part.isdigit() for part in parts)), default=())
