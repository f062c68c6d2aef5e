"""The edits of linked files, on a library that is loaded afterwards."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("elftools", reason="`make setup` installs pyelftools")

from gemlet.elf_file import ElfFile
from tests.compiled import compiled_text

SOURCE = Path(__file__).parents[3] / "packaging/wheels/elf.py"
specification = importlib.util.spec_from_file_location("wheel_elf", SOURCE)
assert specification is not None
assert specification.loader is not None
elf = importlib.util.module_from_spec(specification)
specification.loader.exec_module(elf)


@pytest.fixture(scope="module")
def library() -> bytes:
    options = ("-shared", "-fPIC", "-g", "-Wl,--build-id=sha1", "-Wl,--no-as-needed", "-lm", "-Wl,-z,noseparate-code")
    return compiled_text("cc", *options, text="int answer(void) { return 42; }").read_bytes()


def test_stripped_it_still_works_and_has_its_identity(library, tmp_path):
    small = elf.stripped(library)
    assert len(small) < len(library)
    path = tmp_path / "small.so"
    path.write_bytes(small)
    assert ctypes.CDLL(str(path)).answer() == 42
    said = subprocess.run(["readelf", "-WSs", path], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert ".debug_info" not in said.stdout
    assert ".symtab" not in said.stdout
    assert "answer" in said.stdout  # what it exports stays
    assert elf.build_id(small) == elf.build_id(library)


def test_a_dependency_is_taken_away(library, tmp_path):
    path = tmp_path / "less.so"
    path.write_bytes(elf.without_needed(library, "libm."))
    before = compiled_text("cc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-lm", text="int other;")
    assert "libm.so.6" in ElfFile(str(before)).needed
    assert set(ElfFile(str(path)).needed) == {"libc.so.6"}
    assert ctypes.CDLL(str(path)).answer() == 42


def test_without_an_identity_symbols_could_not_be_found():
    bare = compiled_text("cc", "-shared", "-fPIC", "-Wl,--build-id=none", text="int nothing;")
    with pytest.raises(ValueError, match="build-id"):
        elf.build_id(bare.read_bytes())
    assert sys.byteorder == "little"  # as the files are
