"""Root directories of Debian's and Ubuntu's releases, old and new, made by debootstrap; kept in build/roots.

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
DEBIAN = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
UBUNTU = os.environ.get("UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu")
UBUNTU_SUITES = ("xenial", "bionic", "focal", "jammy", "noble")
"""glibc 2.23, 2.27, 2.31, 2.35, 2.39: 16.04 to 24.04."""
WITHOUT_GEMLET = ("xenial", "bionic")
"""Their glibc is older than what gemlet itself needs, 2.28: programs have the hook there, and nothing else."""
SUITES = ("bullseye", "bookworm", "trixie", "sid", *UBUNTU_SUITES)
"""Debian's have glibc 2.31, 2.36, 2.41 and the newest."""
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
            foreign = [] if architecture == "amd64" else ["--foreign", f"--arch={architecture}"]
            # A debootstrap that is older than the suite does not know it; "gutsy" is what it does for any of Ubuntu's.
            ubuntu = suite in UBUNTU_SUITES
            source = [UBUNTU, "gutsy"] if ubuntu else [DEBIAN]
            components = ["--components=main,universe"] if ubuntu else []
            options = ["--variant=minbase", f"--include={INCLUDED}", *foreign, *components]
            command = [program, *options, suite, str(unfinished), *source]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.fail(f"{' '.join(command)} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}", pytrace=False)
            for package in unfinished.glob("var/cache/apt/archives/*.deb") if foreign else ():
                subprocess.run(["dpkg-deb", "--extract", package, unfinished], check=True)
            unfinished.rename(made)
    return made
