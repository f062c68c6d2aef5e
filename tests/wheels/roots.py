"""Root directories of Debian's releases, old and new, made by debootstrap; kept in build/roots.

Where it is made for another architecture, only its packages are unpacked: enough for qemu-user to find its libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compiled import locked

FOLDER = Path(__file__).resolve().parents[2] / "build" / "roots"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SUITES = ("bullseye", "bookworm", "trixie", "sid")
"""glibc 2.31, 2.36, 2.41 and the newest."""
INCLUDED = "musl,python3,python3-venv"


def root(suite: str, architecture: str = "amd64") -> Path:
    """The root of ``suite``; made the first time. Skips the test without root's rights or debootstrap."""
    program = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin")
    if program is None or os.geteuid() != 0:
        pytest.skip("root directories are made by debootstrap, as root: apt-get install debootstrap")
    made = FOLDER / f"{suite}-{architecture}"
    with locked(FOLDER / "locks" / made.name):
        if not made.exists():
            unfinished = made.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            foreign = ["--foreign", f"--arch={architecture}"] if architecture != "amd64" else [f"--include={INCLUDED}"]
            command = [program, "--variant=minbase", *foreign, suite, str(unfinished), MIRROR]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.fail(f"{' '.join(command)} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}", pytrace=False)
            unfinished.rename(made)
    return made
