"""The Debian package in roots of the releases that have a Python for it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.wheels.conftest import DIST
from tests.wheels.roots import root

if TYPE_CHECKING:
    from pathlib import Path


def package_for(architecture: str) -> Path:
    found = sorted(DIST.glob(f"gemlet_*_{architecture}.deb"))
    if not found:
        pytest.fail(f"no package for {architecture} in {DIST}: run `make deb`", pytrace=False)
    return found[0]


@pytest.fixture
def package() -> Path:
    return package_for("amd64")


AARCH64 = 183  # e_machine in the header of an ELF file


def test_the_package_of_aarch64_has_aarch64s_libraries_and_starts(tmp_path):
    subprocess.run(["dpkg-deb", "--extract", package_for("arm64"), tmp_path], check=True)
    asked = subprocess.run(
        ["dpkg-deb", "--field", package_for("arm64"), "Architecture"], capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip() == "arm64"
    linked = [path for path in tmp_path.rglob("*") if _is_elf(path)]
    assert {path.name for path in linked} >= {"libgemhook.so.1", "_native.abi3.so"}
    assert {int.from_bytes(_header(path)[18:20], "little") for path in linked} == {AARCH64}
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("qemu-aarch64-static is not installed: apt-get install qemu-user-static")
    made = root("bookworm", "arm64")
    # Nothing of the root can be started but by qemu, so its Python gets told what /usr/bin/gemlet would find by itself.
    packages = tmp_path / "usr/lib/gemlet/lib/python3.11/site-packages"
    settings = [part for name in (f"PYTHONPATH={packages}", f"PYTHONHOME={made}/usr") for part in ("-E", name)]
    load = (
        "import gemlet._native, sys; from gemlet.__main__ import main; sys.argv[1:] = ['--version']; sys.exit(main())"
    )
    said = subprocess.run(
        [qemu, "-L", str(made), *settings, str(made / "usr/bin/python3.11"), "-c", load],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert said.stdout.startswith("gemlet "), said.stderr


def _is_elf(path: Path) -> bool:
    # The package's python3 is a link to this machine's.
    return path.is_file() and not path.is_symlink() and _header(path).startswith(b"\x7fELF")


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(20)


def inside(made: Path, *command: str) -> str:
    """What the command prints in the root, which has no network, no driver and no systemd."""
    done = subprocess.run(
        ["/usr/sbin/chroot", str(made), "/usr/bin/env", "HOME=/root", "GEMLET_RUNTIME_DIR=/tmp/gemlet-test", *command],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid", "noble"])
def test_it_is_installed_works_and_leaves_nothing(package, suite):
    made = root(suite)
    shutil.copy(package, made / "opt/gemlet.deb")
    shutil.rmtree(made / "tmp/gemlet-test", ignore_errors=True)
    inside(made, "dpkg", "--install", "/opt/gemlet.deb")
    try:
        assert "gemlet" in inside(made, "gemlet", "--version")
        # What gemlet starts by sys.executable, as its daemon, finds gemlet as well.
        ask = "import gemlet._native, sys; print(gemlet.__file__, sys.executable)"
        said = inside(made, "/usr/lib/gemlet/bin/python3", "-c", ask).split()
        assert said[0].startswith("/usr/lib/gemlet/lib/python3")
        assert said[1] == "/usr/lib/gemlet/bin/python3"
        assert (made / "usr/lib/systemd/system/gemlet.service").is_file()
        assert inside(made, "dpkg", "--verify", "gemlet") == ""
    finally:
        inside(made, "dpkg", "--purge", "gemlet")
    assert not (made / "usr/lib/gemlet").exists()
