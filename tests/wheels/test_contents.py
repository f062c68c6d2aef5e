"""What is in the wheels, file by file."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from gemlet.elf_file import ElfFile, newest_glibc
from tests.wheels.conftest import DIST, LIBRARIES, WHEELS

if TYPE_CHECKING:
    from pathlib import Path

FORBIDDEN = {"_dl_find_object", "arc4random", "getrandom", "memfd_create"}
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"}


def libraries(wheel) -> list[Path]:
    files = (path for path in wheel.folder.rglob("*") if path.is_file())
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def test_there_is_one_for_each_python_and_architecture():
    kinds = {wheel.name.split("-", 2)[2].rsplit(".", 1)[0] for wheel in WHEELS}
    assert kinds == {
        f"{python}-manylinux_2_28_{architecture}"
        for python in ("cp311-cp311", "cp312-abi3")
        for architecture in ("x86_64", "aarch64")
    }


def test_it_is_small(wheel):
    assert wheel.wheel.stat().st_size <= 6_000_000


def test_what_is_loaded_into_programs_needs_glibc_2_17_and_no_more(wheel):
    for name in LIBRARIES:
        file = ElfFile(str(wheel.folder / name))
        assert file.machine == wheel.architecture
        assert (2, 0) < newest_glibc(file.required) <= (2, 17), name
        assert set(file.needed) <= SYSTEM, name  # no libstdc++, and no loader, which musl does not have
        assert not FORBIDDEN & undefined(wheel.folder / name), name


def test_the_rest_needs_glibc_2_28_and_no_more(wheel):
    found = libraries(wheel)
    assert {path.name for path in found} >= {"libcuda.so.1", "libnvidia-ml.so.1", "nvidia-cuda-mps-control"}
    for path in found:
        file = ElfFile(str(path))
        assert file.machine == wheel.architecture
        assert newest_glibc(file.required) <= (2, 28), path
        assert {name for name in file.needed if not name.startswith("ld-linux")} <= SYSTEM, path


def test_the_hook_is_in_it_once_and_the_module_too(wheel):
    names = [path.relative_to(wheel.folder).as_posix() for path in libraries(wheel)]
    assert sorted(name for name in names if "libgem" in name) == sorted(LIBRARIES)
    assert len([name for name in names if name.startswith("gemlet/_native")]) == 1


def test_symbols_are_in_a_file_of_their_own(wheel):
    with tarfile.open(next(DIST.glob(f"*-symbols-linux_{wheel.architecture}.tar.xz"))) as archive:
        symbols = set(archive.getnames())
    for path in libraries(wheel):
        with path.open("rb") as file:
            elf = ELFFile(file)
            assert not elf.has_dwarf_info(strict=True), path
            assert elf.get_section_by_name(".symtab") is None, path
            identity = next(elf.get_section_by_name(".note.gnu.build-id").iter_notes())["n_desc"]
        assert f".build-id/{identity[:2]}/{identity[2:]}.debug" in symbols, path


def test_its_parts_are_listed(wheel):
    (document,) = wheel.folder.glob("*.dist-info/sboms/gemlet.cdx.json")
    text = document.read_text()
    validation = pytest.importorskip("cyclonedx.validation.json", reason="`make wheel-test` installs it")
    schema = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    assert validation.JsonStrictValidator(schema).validate_str(text) is None
    names = {component["name"] for component in json.loads(text)["components"]}
    assert {"nanobind", "libcxx", "click"} <= names


def test_the_release_has_the_lists_of_parts_too(wheel):
    (document,) = wheel.folder.glob("*.dist-info/sboms/gemlet.cdx.json")
    (beside,) = DIST.glob(f"*-linux_{wheel.architecture}.cdx.json")
    assert beside.read_text() == document.read_text()


def test_checksums():
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(listed) == {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest


def undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
