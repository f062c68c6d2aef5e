"""The released hook in root directories of many ages, in programs that work with it and in those that cannot."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiled import FOLDER, locked
from tests.wheels.roots import SUITES, WITHOUT_GEMLET, root

PROBE = Path(__file__).with_name("probe.c")
DRIVER = "int cuInit(unsigned flags) { return 0; }\nint cuLaunchKernel(void) { return 0; }\n"
HOOK = "libgemhook.so.1"
CHROOT = "/usr/sbin/chroot"


def probe(target: str, *options: str) -> Path:
    """The probe, built for ``target`` as zig names it."""
    zig = Path(pytest.importorskip("ziglang", reason="`make wheel-test` installs it").__file__).with_name("zig")
    made = FOLDER / f"probe-{target}{''.join(options)}"
    with locked(FOLDER):
        subprocess.run([zig, "cc", "-target", target, "-O1", *options, PROBE, "-ldl", "-o", made], check=True)
    return made


def driver() -> Path:
    """A driver of two functions for glibc 2.17: the simulated one is for where gemlet itself runs."""
    zig = Path(pytest.importorskip("ziglang", reason="`make wheel-test` installs it").__file__).with_name("zig")
    made = FOLDER / "driver-2.17/libcuda.so.1"
    made.parent.mkdir(parents=True, exist_ok=True)
    with locked(FOLDER):
        options = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", made)
        subprocess.run([zig, "cc", "-target", "x86_64-linux-gnu.2.17", *options], input=DRIVER, text=True, check=True)
    return made


def place(wheel, suite: str, architecture: str, program: Path) -> Path:
    """The root of ``suite`` with the wheel's libraries and ``program`` in /opt."""
    made = root(suite, architecture)
    opt = made / "opt"
    shutil.rmtree(opt, ignore_errors=True)
    shutil.copytree(wheel.folder / "gemlet/_lib", opt)
    shutil.copy(program, opt / "probe")
    return made


def in_root(made: Path, *command: str, **variables: str) -> str:
    """What the command says in the root, its own words and the loader's."""
    done = subprocess.run(
        # Set inside: outside, chroot itself would be hooked.
        [CHROOT, str(made), "/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *command],
        env={"PATH": "/usr/bin:/bin", "GEMLET_QUIET": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("suite", SUITES)
def test_programs_of_every_age_are_hooked(of_architecture, suite):
    made = place(of_architecture("x86_64"), suite, "amd64", probe("x86_64-linux-gnu.2.17"))
    libraries = "/opt/sim"
    if suite in WITHOUT_GEMLET:
        libraries = "/opt/driver"
        (made / "opt/driver").mkdir()
        shutil.copy(driver(), made / "opt/driver")
    assert in_root(made, "/opt/probe", LD_LIBRARY_PATH=libraries) == "libcuda.so.1\n"
    assert in_root(made, "/opt/probe", LD_LIBRARY_PATH=libraries, LD_PRELOAD=f"/opt/{HOOK}") == f"{HOOK}\n"
    said = in_root(made, "/bin/sh", "-c", "ls / | grep -cx usr; perl -e 'print 7'", LD_PRELOAD=f"/opt/{HOOK}")
    assert said == "1\n7"


@pytest.mark.parametrize("suite", SUITES)
def test_what_cannot_be_hooked_runs(of_architecture, suite):
    wheel = of_architecture("x86_64")
    for target, options in (("x86_64-linux-musl", ("-dynamic",)), ("x86_64-linux-musl", ("-static",))):
        made = place(wheel, suite, "amd64", probe(target, *options))
        assert in_root(made, "/opt/probe", LD_PRELOAD=f"/opt/{HOOK}") == "no driver\n"


@pytest.mark.parametrize("suite", SUITES)
def test_doctor_says_so_of_each_root(of_architecture, suite, monkeypatch, capsys):
    from gemlet.cli import main

    monkeypatch.setenv("GEMLET_LIB_DIR", str(of_architecture("x86_64").hook.parent))
    assert main.run(["doctor", "--image", str(root(suite))]) == 0
    said = capsys.readouterr().out
    needed = re.search(r"needs glibc 2\.(\d+) or newer", said)  # what it calls decides: no newer than is promised
    assert needed is not None, said
    assert int(needed[1]) <= 17
    assert "musl" in said  # the roots have it beside glibc


@pytest.mark.parametrize("suite", ["bullseye", "sid"])
def test_programs_of_aarch64_are_hooked(of_architecture, suite):
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("qemu-aarch64-static is not installed: apt-get install qemu-user-static")
    made = place(of_architecture("aarch64"), suite, "arm64", probe("aarch64-linux-gnu.2.17"))

    def run(*variables: str) -> str:
        settings = [part for variable in variables for part in ("-E", variable)]
        done = subprocess.run(
            [qemu, "-L", str(made), *settings, str(made / "opt/probe")],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    libraries = f"LD_LIBRARY_PATH={made}/opt/sim"
    assert run(libraries) == "libcuda.so.1\n"
    assert run(libraries, f"LD_PRELOAD={made}/opt/{HOOK}", "GEMLET_QUIET=1") == f"{HOOK}\n"


def test_this_python_runs_with_the_hook(of_architecture):
    done = subprocess.run(
        [sys.executable, "-c", "import threading, ctypes; print(ctypes.CDLL(None).abs(-3))"],
        env={"LD_PRELOAD": str(of_architecture("x86_64").hook), "GEMLET_QUIET": "1"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("3\n", "")
