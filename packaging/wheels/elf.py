"""Two edits of a linked ELF file for which there is no tool that works for another architecture than this machine's.

Both leave every byte of the loaded segments where it is.
"""

from __future__ import annotations

import io
import struct

from elftools.elf.elffile import ELFFile

SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
DYNAMIC_BYTES = 16  # an entry's


def build_id(image: bytes) -> str:
    """The file's identity in hexadecimal, by which a debugger finds its symbols. Raises ValueError without one."""
    section = ELFFile(io.BytesIO(image)).get_section_by_name(".note.gnu.build-id")
    if section is None:
        raise ValueError("no build id: link with --build-id")
    return next(section.iter_notes())["n_desc"]


def stripped(image: bytes) -> bytes:
    """The file without symbols and debug information: what is loaded, and the headers of the sections in it.

    Raises ValueError for a file whose loaded sections are not its first ones.
    """
    elf = ELFFile(io.BytesIO(image))
    sections = list(elf.iter_sections())
    loaded = [number == 0 or bool(each["sh_flags"] & 2) for number, each in enumerate(sections)]  # SHF_ALLOC
    count = loaded.index(False)
    if any(loaded[count:]):
        raise ValueError("a loaded section follows one that is not: its number would change")
    end = max(each["p_offset"] + each["p_filesz"] for each in elf.iter_segments())
    result = bytearray(image[:end])
    names = bytearray(b"\0")
    headers = []
    for number, section in enumerate(sections[:count]):
        position = elf["e_shoff"] + number * elf["e_shentsize"]
        fields = SECTION_HEADER.unpack_from(image, position)
        headers.append(SECTION_HEADER.pack(len(names) if number else 0, *fields[1:]))
        names += section.name.encode() + b"\0" if number else b""
    own_name = len(names)
    names += b".shstrtab\0"
    headers.append(SECTION_HEADER.pack(own_name, 3, 0, 0, len(result), len(names), 0, 0, 1, 0))  # SHT_STRTAB
    result += names
    result += bytes(-len(result) % 8)
    struct.pack_into("<Q", result, 0x28, len(result))  # e_shoff
    struct.pack_into("<HHH", result, 0x3A, SECTION_HEADER.size, len(headers), count)  # e_shentsize, e_shnum, e_shstrndx
    return bytes(result) + b"".join(headers)


def without_needed(image: bytes, prefix: str) -> bytes:
    """The file without its dependency on libraries whose name begins with ``prefix``."""
    elf = ELFFile(io.BytesIO(image))
    dynamic = next(each for each in elf.iter_segments() if each["p_type"] == "PT_DYNAMIC")
    start, end = dynamic["p_offset"], dynamic["p_offset"] + dynamic["p_filesz"]
    dropped = {
        index
        for index, tag in enumerate(dynamic.iter_tags())
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed.startswith(prefix)
    }
    entries = [image[at : at + DYNAMIC_BYTES] for at in range(start, end, DYNAMIC_BYTES)]
    kept = b"".join(entry for index, entry in enumerate(entries) if index not in dropped)
    return image[:start] + kept.ljust(end - start, b"\0") + image[end:]  # DT_NULL is 0
