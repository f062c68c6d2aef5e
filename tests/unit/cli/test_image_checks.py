"""What doctor says of root directories, made of files of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemlet import paths
from gemlet.cli import main
from gemlet.cli.image_checks import inside, run_image_checks
from gemlet.elf_file import ElfFile
from gemlet.errors import UsageError
from tests.compiled import compiled_text

MAPS = Path("/proc/self/maps").read_text()
LIBC = next(Path(line.split()[-1]) for line in MAPS.splitlines() if "libc.so.6" in line)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "lib").symlink_to("/usr/lib")  # as if it were /
    return root


def verdicts(root: Path) -> dict[str, str]:
    return {check.name: check.verdict for check in run_image_checks(root)}


def test_a_root_with_this_machines_libc_works(root, capsys):
    (root / "usr/lib/x86_64-linux-gnu/libc.so.6").symlink_to("libc-2.so")
    shutil.copy(LIBC, root / "usr/lib/x86_64-linux-gnu/libc-2.so")
    assert verdicts(root) == {"hook": "ok", "libc of usr/lib/x86_64-linux-gnu": "ok"}
    assert main.run(["doctor", "--image", str(root)]) == 0
    assert "ok    libc of usr/lib/x86_64-linux-gnu  glibc 2." in capsys.readouterr().out


def test_an_older_libc_fails_and_the_words_say_why(root, tmp_path):
    (tmp_path / "versions").write_text(
        "GLIBC_2.2.5 { global: old; local: *; }; GLIBC_2.3 { global: new; } GLIBC_2.2.5;"
    )
    script = f"-Wl,--version-script={tmp_path}/versions"
    old = compiled_text("cc", "-shared", "-fPIC", "-nostdlib", script, text="int old, new;")
    shutil.copy(old, root / "usr/lib/x86_64-linux-gnu/libc.so.6")
    (_, check) = run_image_checks(root)
    assert (check.verdict, check.text) == ("fail", "glibc 2.3: its programs do not start with the hook")
    assert check.hint


def test_no_libc_at_all(root):
    (_, check) = run_image_checks(root)
    assert (check.name, check.verdict) == ("libc", "fail")


def test_musl_depends_on_the_hook(root, monkeypatch, tmp_path):
    (root / "usr/lib" / "ld-musl-x86_64.so.1").touch()
    needs_loader = any(name.startswith("ld-") for name in ElfFile(paths.hook_path()).needed)
    assert verdicts(root)["musl"] == ("fail" if needs_loader else "warn")
    shutil.copy(compiled_text("cc", "-shared", "-fPIC", text="int nothing;"), tmp_path / "libgemhook.so.1")
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    assert verdicts(root)["musl"] == "warn"


def test_other_machines_and_32_bits(root):
    target = root / "usr/lib/x86_64-linux-gnu/libc.so.6"
    image = bytearray(LIBC.read_bytes())
    image[18] = 243
    target.write_bytes(image)
    assert "these programs are for riscv64" in run_image_checks(root)[1].text
    image[4] = 1
    target.write_bytes(image)
    assert "32-bit" in run_image_checks(root)[1].text
    target.write_bytes(b"text")
    assert run_image_checks(root)[1].verdict == "fail"


def test_no_link_leads_out(root, tmp_path):
    (tmp_path / "outside").touch()
    (root / "up").symlink_to("../../../outside")
    (root / "absolute").symlink_to(tmp_path / "outside")
    (root / "circle").symlink_to("circle")
    assert inside(root, "up") == root / "outside"
    assert inside(root, "absolute") == root / str(tmp_path / "outside").strip("/")
    assert inside(root, "circle") is None
    assert inside(root, "lib/x86_64-linux-gnu") == root / "usr/lib/x86_64-linux-gnu"


def test_a_directory_is_expected(tmp_path):
    with pytest.raises(UsageError, match="is not a directory"):
        run_image_checks(tmp_path / "none")
