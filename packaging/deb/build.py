#!/usr/bin/env python3
"""Builds Debian packages from the wheels in dist: `make deb`.

    .venv/bin/python packaging/deb/build.py [--architecture amd64] [--out dist]

Debian has not the versions of Python's libraries that gemlet needs, so the package brings them: an environment at
/usr/lib/gemlet whose interpreter is the system's, with site-packages for each Python that a supported release may have.
What decides is /usr/bin/python3 when a command starts, so an upgrade of the distribution needs no other package.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
WORK = SOURCE / "build/deb"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
HOME = Path("usr/lib/gemlet")
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
CONTROL = """\
Package: gemlet
Version: {version}
Architecture: {architecture}
Maintainer: gemlet maintainers <gemlet@invalid>
Section: utils
Priority: optional
Depends: python3 (>= {first}), python3 (<< {after}), libc6 (>= 2.28)
Installed-Size: {size}
Description: shares NVIDIA GPUs among unmodified CUDA programs, with guarantees
 A guaranteed share of device time, a maximum, a limit of device memory and a
 priority for each group of programs. Contains the daemon of the system
 (gemlet.service, not enabled) and the gemlet command.
"""
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    for folder in /usr/lib/gemlet/lib/"$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')"; do
        if [ -d "$folder" ]; then python3 -m compileall -q -j 0 "$folder" || true; fi
    done
    if [ -d /run/systemd/system ]; then
        systemd-sysusers gemlet.conf
        systemctl daemon-reload
    fi
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl --quiet disable --now gemlet.service || true; fi
find /usr/lib/gemlet -name __pycache__ -type d -prune -exec rm -rf {} +
"""
COMMAND = """\
#!/usr/lib/gemlet/bin/python3
import sys

from gemlet.__main__ import main

sys.exit(main())
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gemlet

Files: *
Copyright: the gemlet authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
Comment: the libraries that are brought along have their licences in
 /usr/lib/gemlet/lib/python*/site-packages/*.dist-info.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds Debian packages from the wheels in dist.")
    parser.add_argument("--architecture", choices=ARCHITECTURES, action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=SOURCE / "dist", help="where the wheels are and the packages go")
    given = parser.parse_args()
    out = given.out.absolute()
    version = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
    if not list(out.glob(f"gemlet-{version}-*.whl")):
        sys.exit(f"error: no wheel of {version} in {out}\n\nhint: make wheels")
    moment = subprocess.run(["git", "-C", SOURCE, "log", "-1", "--format=%ct"], check=True, capture_output=True)
    os.environ["SOURCE_DATE_EPOCH"] = moment.stdout.decode().strip()
    for old in out.glob("gemlet_*.deb"):
        old.unlink()
    for architecture in given.architecture or ARCHITECTURES:
        package = _package(architecture, version, out)
        print(f"{package.stat().st_size / 1e6:6.2f} MB  {package.name}", flush=True)
    made = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(lines))


def _package(architecture: str, version: str, out: Path) -> Path:
    root = WORK / architecture
    shutil.rmtree(root, ignore_errors=True)
    home = root / HOME
    for python in PYTHONS:
        _install(python, ARCHITECTURES[architecture], version, out, home / f"lib/python{python}/site-packages")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "bin/gemlet").write_text(COMMAND)
    (home / "bin/gemlet").chmod(0o755)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/gemlet").symlink_to("../lib/gemlet/bin/gemlet")
    units = SOURCE / "packaging/systemd"
    _copy(units / "gemlet.service", root / "usr/lib/systemd/system/gemlet.service")
    _copy(units / "gemlet.sysusers", root / "usr/lib/sysusers.d/gemlet.conf")
    documents = root / "usr/share/doc/gemlet"
    for name in ("training.service", "training.slice"):
        _copy(units / "examples" / name, documents / "examples" / name)
    (documents / "copyright").write_text(COPYRIGHT)
    changes = (SOURCE / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(changes, 9, mtime=0))
    _control(root, architecture, version)
    package = out / f"gemlet_{version}_{architecture}.deb"
    # Of the four copies of pure Python files three cost nothing: xz finds them in its window.
    _run("dpkg-deb", "--root-owner-group", "-Zxz", "-z9", "--build", root, package)
    return package


def _install(python: str, machine: str, version: str, wheels: Path, target: Path) -> None:
    platforms = [part for name in PLATFORMS for part in ("--platform", f"{name}_{machine}")]
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--target", target,
        "--python-version", python, *platforms, "--find-links", wheels, f"gemlet[metrics]=={version}",
    )  # fmt: skip
    shutil.rmtree(target / "bin", ignore_errors=True)


def _control(root: Path, architecture: str, version: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]
    control = root / "DEBIAN"
    control.mkdir()
    after = "3." + str(int(PYTHONS[-1].split(".")[1]) + 1)
    size = sum(path.stat().st_size for path in files) // 1024
    (control / "control").write_text(
        CONTROL.format(version=version, architecture=architecture, first=PYTHONS[0], after=after, size=size)
    )
    (control / "md5sums").write_text("".join(sums))
    for name, text in (("postinst", POSTINST), ("prerm", PRERM)):
        (control / name).write_text(text)
        (control / name).chmod(0o755)
    for path in root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o644)


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}error: {command[0]} failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
