from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gemlet import loading
from gemlet.cli.run import NotExecutable, unlimited
from gemlet.elf_file import ElfFile, NotElfError, newest_glibc
from tests.compiled import compiled_text

EMPTY = "int main(void) { return 0; }"


@pytest.fixture(scope="module")
def dynamic() -> Path:
    return compiled_text("cc", text=EMPTY)


@pytest.fixture
def changed(dynamic, tmp_path):
    """A program made of the dynamic one by changes of its bytes."""

    def change(edit) -> str:
        image = bytearray(dynamic.read_bytes())
        edit(image)
        path = tmp_path / "changed"
        path.write_bytes(image)
        path.chmod(0o755)
        return str(path)

    return change


def test_a_dynamic_program_is_hooked(dynamic):
    assert loading.obstacle(str(dynamic), os.environ) is None
    assert unlimited(("a.out",), str(dynamic), os.environ, strict=True) is None


def test_a_static_one_is_not():
    static = compiled_text("cc", "-static", text=EMPTY)
    assert loading.obstacle(str(static), os.environ) == "is linked statically"
    static_pie = compiled_text("cc", "-static-pie", text=EMPTY)
    assert loading.obstacle(str(static_pie), os.environ) == "is linked statically"


def test_one_of_32_bits(changed):
    def class32(image):
        image[4] = 1

    assert loading.obstacle(changed(class32), os.environ) == "is a 32-bit program"


def test_one_for_another_machine(changed):
    other, name = (183, "aarch64") if os.uname().machine == "x86_64" else (62, "x86_64")
    path = changed(lambda image: struct.pack_into("<H", image, 18, other))
    assert loading.obstacle(path, os.environ) == f"is a program for {name}"


def test_one_of_musl(changed, dynamic):
    assert "musl" in (loading.obstacle(changed(lambda image: _of_musl(image, dynamic)), os.environ) or "")


def _of_musl(image: bytearray, dynamic: Path) -> None:
    loader = (ElfFile(str(dynamic)).interpreter or "").encode()
    at = image.index(loader)
    musl = f"/lib/ld-musl-{os.uname().machine}.so.1".encode()
    image[at : at + len(loader)] = musl[: len(loader)].ljust(len(loader), b"\0")


def test_rights_of_its_own(changed, monkeypatch):
    path = changed(lambda image: None)
    Path(path).chmod(0o4755)
    monkeypatch.setattr(os, "getuid", lambda: Path(path).stat().st_uid)
    assert loading.obstacle(path, os.environ) is None
    monkeypatch.setattr(os, "getuid", lambda: Path(path).stat().st_uid + 1)
    assert "setuid" in (loading.obstacle(path, os.environ) or "")
    Path(path).chmod(0o2755)
    monkeypatch.setattr(os, "getgid", lambda: Path(path).stat().st_gid + 1)
    assert "setgid" in (loading.obstacle(path, os.environ) or "")


def test_a_script_is_its_interpreter(tmp_path, dynamic):
    static = compiled_text("cc", "-static", text=EMPTY)
    (tmp_path / "earlier" / "tool").mkdir(parents=True)  # is no program
    (tmp_path / "tool").symlink_to(static)
    by_path, by_env, twice = (tmp_path / name for name in ("by-path", "by-env", "twice"))
    by_path.write_text(f"#!{static} -x\n")
    by_env.write_text("#!/usr/bin/env -S A=b tool -x\n")
    twice.write_text(f"#! {by_path}\n")
    environment = {"PATH": f"/nonexistent:{tmp_path}/earlier:{tmp_path}"}
    for script in (by_path, by_env, twice):
        assert loading.obstacle(str(script), environment) == "is linked statically", script
    by_path.write_text(f"#!{dynamic}\n")
    assert loading.obstacle(str(twice), environment) is None


@pytest.mark.parametrize(
    "content", [b"", b"#!", b"#!/usr/bin/env none-of-that-name\n", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 80]
)
def test_what_cannot_be_known_is_left_to_linux(tmp_path, content):
    path = tmp_path / "odd"
    path.write_bytes(content)
    assert "statically" not in (loading.obstacle(str(path), {}) or "")


def test_itself_as_its_interpreter_ends(tmp_path):
    path = tmp_path / "loop"
    path.write_text(f"#!{path}\n")
    assert loading.obstacle(str(path), {}) is None


def test_strict_refuses_what_cannot_be_limited():
    static = str(compiled_text("cc", "-static", text=EMPTY))
    said = unlimited(("./a.out",), static, os.environ, strict=False)
    assert said is not None
    assert said[0] == "./a.out is linked statically: it runs without gemlet's limits"
    with pytest.raises(NotExecutable, match="is linked statically: the hook cannot be loaded"):
        unlimited(("./a.out",), static, os.environ, strict=True)


@pytest.mark.parametrize(
    "tunables",
    [
        "glibc.rtld.enable_secure=1",
        "glibc.malloc.arena_max=2:glibc.rtld.enable_secure=0x1",
        "glibc.rtld.enable_secure=0:glibc.rtld.enable_secure=1",
    ],
)
def test_a_loader_that_is_to_be_secure(dynamic, tunables):
    environment = dict(os.environ, GLIBC_TUNABLES=tunables)
    said = unlimited(("a.out",), str(dynamic), environment, strict=False)
    assert said is not None
    assert "glibc.rtld.enable_secure" in said[0]
    with pytest.raises(NotExecutable, match=r"GLIBC_TUNABLES.* cannot be loaded"):
        unlimited(("a.out",), str(dynamic), environment, strict=True)


@pytest.mark.parametrize("tunables", ["", "glibc.malloc.check=1", "glibc.rtld.enable_secure=0", "glibc.rtld.nns=4"])
def test_other_tunables_take_nothing_away(dynamic, tunables):
    assert unlimited(("a.out",), str(dynamic), dict(os.environ, GLIBC_TUNABLES=tunables), strict=True) is None


def test_strict_refuses_what_cannot_be_known(dynamic, tmp_path, monkeypatch):
    odd = tmp_path / "odd"
    odd.write_bytes(b"MZ of another system, which Linux may know how to run")
    assert unlimited(("odd",), str(odd), os.environ, strict=False) is None
    with pytest.raises(NotExecutable, match="cannot be read"):
        unlimited(("odd",), str(odd), os.environ, strict=True)

    def unreadable(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(loading, "_start", unreadable)  # its mode is no obstacle to root
    assert unlimited(("a.out",), str(dynamic), os.environ, strict=False) is None
    with pytest.raises(NotExecutable, match="cannot be read"):
        unlimited(("a.out",), str(dynamic), os.environ, strict=True)


def test_a_hook_that_needs_the_loader_of_glibc_is_refused_by_musl(changed, dynamic):
    path = changed(lambda image: _of_musl(image, dynamic))
    libc = next(
        Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so.6" in line
    )
    assert any(name.startswith("ld-") for name in ElfFile(str(libc)).needed)
    assert loading.refused_by_loader(path, {}, str(libc))
    assert not loading.refused_by_loader(path, {}, str(dynamic))
    assert not loading.refused_by_loader(str(dynamic), {}, str(libc))


def test_versions_as_readelf_says():
    elffile = pytest.importorskip("elftools.elf.elffile", reason="`make setup` installs pyelftools")
    library = next(
        Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so.6" in line
    )
    ours = ElfFile(str(library))
    with library.open("rb") as file:
        theirs = elffile.ELFFile(file)
        defined = {next(names).name for _, names in theirs.get_section_by_name(".gnu.version_d").iter_versions()}
        required = {
            use.name for _, uses in theirs.get_section_by_name(".gnu.version_r").iter_versions() for use in uses
        }
        needed = [
            tag.needed for tag in theirs.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        ]
    assert (ours.defined, ours.required, list(ours.needed)) == (defined, required, needed)
    assert newest_glibc(ours.defined) >= (2, 17)


def test_no_elf_file(tmp_path):
    (tmp_path / "text").write_text("words")
    with pytest.raises(NotElfError):
        ElfFile(str(tmp_path / "text"))
    assert newest_glibc(frozenset({"GLIBC_PRIVATE", "OTHER_3"})) == ()
    assert newest_glibc(frozenset({"GLIBC_2.4", "GLIBC_2.17"})) == (2, 17)


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="musl-tools is not installed")
def test_a_real_program_of_musl():
    assert "musl" in (loading.obstacle(str(compiled_text("musl-gcc", text=EMPTY)), {}) or "")


def test_what_blocks_when_it_is_opened_is_not_opened(tmp_path):
    """A file of somebody else's, or of an image, may be anything."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o755)
    (tmp_path / "script").write_text(f"#!{pipe}\n")
    for path in (pipe, tmp_path / "script"):
        assert loading.binary(str(path), {}) is None
        assert loading.obstacle(str(path), {}) is None
        assert loading.obstacle(str(path), {}, strict=True) == loading.UNKNOWN
    with pytest.raises(NotElfError):
        ElfFile(str(pipe))


def test_tables_that_lead_back_to_themselves_end(tmp_path):
    """Each record's next is itself, of which a file may claim 65,535 times as many as of the records."""
    texts, needs = 0x200, 0x300
    dynamic = [(5, texts), (0x6FFFFFFE, needs), (0x6FFFFFFF, 1 << 40), (0, 0)]
    table = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    segments = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 0x400, 0x400, 0)
    segments += struct.pack("<IIQQQQQQ", 2, 0, 0x100, 0x100, 0, len(table), len(table), 0)
    header = b"\x7fELF\x02\x01".ljust(18, b"\0") + struct.pack("<H", 62)
    content = bytearray(0x400)
    content[: len(header)] = header
    struct.pack_into("<Q", content, 32, 0x40)
    struct.pack_into("<HH", content, 54, 56, 2)
    content[0x40 : 0x40 + len(segments)] = segments
    content[0x100 : 0x100 + len(table)] = table
    struct.pack_into("<HHIII", content, needs, 1, 65_535, 0, 16, 0)
    struct.pack_into("<IHHII", content, needs + 16, 0, 0, 0, 0, 0)
    file = tmp_path / "loops"
    file.write_bytes(content)
    reading = subprocess.run(
        [sys.executable, "-c", f"from gemlet.elf_file import ElfFile; ElfFile({str(file)!r})"],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)),
    )  # fmt: skip
    assert reading.returncode == 1, "it took more than 20 s of a processor"
    assert "NotElfError" in reading.stderr
