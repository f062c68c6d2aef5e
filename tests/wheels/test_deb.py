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


@pytest.fixture
def package() -> Path:
    found = sorted(DIST.glob("gemlet_*_amd64.deb"))
    if not found:
        pytest.fail(f"no package in {DIST}: run `make deb`", pytrace=False)
    return found[0]


def inside(made: Path, *command: str) -> str:
    """What the command prints in the root, which has no network, no driver and no systemd."""
    done = subprocess.run(
        ["/usr/sbin/chroot", str(made), "/usr/bin/env", "HOME=/root", "GEMLET_RUNTIME_DIR=/tmp/gemlet-test", *command],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
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
