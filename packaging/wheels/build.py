#!/usr/bin/env python3
"""Builds the wheels that are released: `make wheels`.

    .venv/bin/python packaging/wheels/build.py [--architecture x86_64] [--out dist] [--compile-only]

One wheel for Python 3.11 and one for 3.12 and later (the stable ABI that nanobind speaks begins with 3.12), for each
architecture. Zig is the compiler, because it is a pinned package of PyPI that brings the C library's versions with it:
`-target aarch64-linux-gnu.2.17` declares nothing that glibc 2.17 does not have, links with nothing newer, and needs
neither a container of an old distribution nor another for the other architecture. Its C++ runtime is linked in.

    what                                floor         why
    libgemhook.so.1, libgembatch.so.1   glibc 2.17    loaded into programs, in containers of any age; musl's too
    gemlet._native, simulated machine   glibc 2.28    where gemlet itself runs: manylinux_2_28
    gemlet-start-check                  none          run on the nodes of Kubernetes; linked statically, with musl

Beside the wheels: the sources, the symbols of every library by build id, and checksums.

`--compile-only` is for CI (`make zig`): it builds the native parts for this machine's architecture and this Python. So
a header or a function that only newer C and C++ libraries have is found before a release is built.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import elf
import nanobind
import sbom
import ziglang

SOURCE = Path(__file__).resolve().parents[2]
WORK = SOURCE / "build" / "wheels"
ARCHITECTURES = ("x86_64", "aarch64")
PRELOADED_FLOOR, FLOOR = "2.17", "2.28"
PRELOADED = ("libgemhook.so.1", "libgembatch.so.1")
MOST_BYTES = 6_000_000
CUDA = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"


@dataclass(frozen=True)
class Flavour:
    """The Python that a module is built for. ``abi``: of its wheel's name; ``suffix``: of the module's."""

    version: str
    abi: str
    suffix: str  # {} is the architecture


FLAVOURS = (
    Flavour("3.11", "cp311", ".cpython-311-{}-linux-gnu.so"),
    Flavour("3.12", "abi3", ".abi3.so"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the wheels that are released.")
    parser.add_argument("--architecture", choices=ARCHITECTURES, action="append", help="default: all")
    parser.add_argument(
        "--out", type=Path, default=SOURCE / "dist", help="where they are put, in the place of those there"
    )
    parser.add_argument("--compile-only", action="store_true", help="the native parts for this machine; no wheels")
    given = parser.parse_args()
    if not (CUDA / "cuda.h").exists():
        sys.exit(f"error: {CUDA}/cuda.h does not exist\n\nhint: make setup")
    if given.compile_only:
        folder = WORK / "compiled"
        _preloaded_and_programs(platform.machine(), sys.executable, folder, folder / "package")
        _cmake(platform.machine(), FLOOR, sys.executable, folder / "module", folder / "package", "ARBITER")
        return
    interpreters = {flavour: _interpreter(flavour.version) for flavour in FLAVOURS}
    # All times in the wheels are those of the commit: the same sources give the same bytes.
    os.environ["SOURCE_DATE_EPOCH"] = _output("git", "-C", SOURCE, "log", "-1", "--format=%ct")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("gemlet-*"), *out.glob("SHA256SUMS")):
        old.unlink()
    python_files = _python_files()
    for architecture in given.architecture or ARCHITECTURES:
        _architecture(architecture, interpreters, python_files, out)
    _source_archive(out)
    made = sorted(out.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(lines))
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")
    big = [path.name for path in made if path.suffix == ".whl" and path.stat().st_size > MOST_BYTES]
    if big:
        sys.exit(f"error: more than {MOST_BYTES / 1e6:.0f} MB: {', '.join(big)}")


def _architecture(architecture: str, pythons: dict[Flavour, str], python_files: Path, out: Path) -> None:
    folder = WORK / architecture
    package = folder / "package"
    shutil.rmtree(package, ignore_errors=True)
    _preloaded_and_programs(architecture, pythons[FLAVOURS[0]], folder, package)
    for flavour in FLAVOURS:
        module = folder / f"module-{flavour.abi}"
        shutil.rmtree(module / "package", ignore_errors=True)
        _cmake(architecture, FLOOR, pythons[flavour], module / "build", module / "package", "ARBITER")
    symbols: dict[str, bytes] = {}
    libraries = {
        f"_lib/{path.relative_to(package / '_lib')}": _finished(path, symbols)
        for path in sorted((package / "_lib").rglob("*"))
        if path.is_file()
    }
    for flavour in FLAVOURS:
        (module,) = (folder / f"module-{flavour.abi}" / "package").glob("_native*.so")
        name = f"_native{flavour.suffix.format(architecture)}"
        _wheel(architecture, flavour, python_files, libraries | {name: _finished(module, symbols)}, out)
    # The same list as in the wheels, for those who read it without unpacking one.
    (out / f"gemlet-{_version()}-linux_{architecture}.cdx.json").write_text(sbom.document(_version(), architecture))
    _symbols_archive(out / f"gemlet-{_version()}-symbols-linux_{architecture}.tar.xz", symbols)


def _preloaded_and_programs(architecture: str, python: str, folder: Path, package: Path) -> None:
    """The parts that are the same for every Python."""
    _cmake(architecture, PRELOADED_FLOOR, python, folder / "preloaded", package, "HOOK", "BATCH")
    _cmake(architecture, FLOOR, python, folder / "simulated", package, "SIM")
    _cmake(architecture, None, python, folder / "static", package, "START_CHECK")


def _cmake(architecture: str, floor: str | None, python: str, build: Path, package: Path, *parts: str) -> None:
    """Builds the ``parts`` in place, below ``package``. ``floor``: of glibc; None for all of musl within."""
    target = f"{architecture}-linux-gnu.{floor}" if floor is not None else f"{architecture}-linux-musl"
    print(f"{target}: {', '.join(parts).lower()}", flush=True)
    zig = Path(ziglang.__file__).with_name("zig")
    known = ("HOOK", "BATCH", "SIM", "ARBITER", "START_CHECK")
    switches = [f"-DGEMLET_BUILD_{part}={'ON' if part in parts else 'OFF'}" for part in known]
    _run(
        "cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", "--log-level=WARNING",
        f"-DCMAKE_C_COMPILER={zig};cc;-target;{target}",
        f"-DCMAKE_CXX_COMPILER={zig};c++;-target;{target}",
        # nanobind's headers use stderr, which Python's stable headers bring only with some C++ libraries.
        f"-DCMAKE_CXX_FLAGS=-ffile-prefix-map={SOURCE}=. -include cstdio -Wno-macro-redefined",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--build-id=sha1",
        "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--build-id=sha1",
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--build-id=sha1",
        f"-DPython_EXECUTABLE={python}", f"-DCUDA_INCLUDE={CUDA}", f"-Dnanobind_DIR={nanobind.cmake_dir()}",
        f"-DGEMLET_PACKAGE_DIR={package}", "-DGEMLET_STABLE_ABI=ON", *switches,
        quiet=True,
    )  # fmt: skip
    _run("cmake", "--build", build, "--", "--quiet")


def _finished(path: Path, symbols: dict[str, bytes]) -> tuple[bytes, int]:
    """What goes into the wheel of a linked file, and its mode. The whole file goes to ``symbols``."""
    image = path.read_bytes()
    identity = elf.build_id(image)
    symbols[f".build-id/{identity[:2]}/{identity[2:]}.debug"] = image
    if path.name in PRELOADED:
        # Every program has its loader already, and musl, which has none of that name, would refuse the program.
        image = elf.without_needed(image, "ld-linux")
    return elf.stripped(image), path.stat().st_mode & 0o777


def _python_files() -> Path:
    """The unpacked wheel of the Python files alone, with the metadata."""
    pure = WORK / "pure"
    shutil.rmtree(pure, ignore_errors=True)
    _run(
        sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation",
        "--config-settings=wheel.cmake=false", "--wheel-dir", pure, SOURCE,
    )  # fmt: skip
    (wheel,) = pure.glob("*.whl")
    _run(sys.executable, "-m", "wheel", "unpack", "--dest", pure, wheel, quiet=True)
    (unpacked,) = (path for path in pure.iterdir() if path.is_dir())
    return unpacked


def _wheel(
    architecture: str, flavour: Flavour, python_files: Path, files: dict[str, tuple[bytes, int]], out: Path
) -> None:
    content = WORK / architecture / f"wheel-{flavour.abi}" / python_files.name
    shutil.rmtree(content.parent, ignore_errors=True)
    shutil.copytree(python_files, content)
    for name, (image, mode) in files.items():
        path = content / "gemlet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        path.chmod(mode)
    (information,) = content.glob("*.dist-info")
    (information / "sboms").mkdir()
    (information / "sboms" / "gemlet.cdx.json").write_text(sbom.document(_version(), architecture))
    tag = f"cp{flavour.version.replace('.', '')}-{flavour.abi}-linux_{architecture}"
    text = (information / "WHEEL").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("Tag:", "Root-Is-Purelib:")) and line]
    (information / "WHEEL").write_text("\n".join([*lines, "Root-Is-Purelib: false", f"Tag: {tag}", ""]))
    _run(sys.executable, "-m", "wheel", "pack", "--dest-dir", content.parent, content, quiet=True)
    (wheel,) = content.parent.glob("*.whl")
    platform = f"manylinux_{FLOOR.replace('.', '_')}_{architecture}"
    # auditwheel reads the files of every architecture, but knows the platforms of this machine's only.
    audit = f"import platform; platform.machine = lambda: '{architecture}'; from auditwheel.main import main; main()"
    _run(
        sys.executable, "-c", audit, "repair", "--only-plat", "--plat", platform, "--wheel-dir", out, wheel, quiet=True
    )


def _symbols_archive(path: Path, symbols: dict[str, bytes]) -> None:
    """Unpacked in /usr/lib/debug, debuggers and profilers find them there."""
    with tarfile.open(path, "w:xz") as archive:
        for name, image in sorted(symbols.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(image)
            archive.addfile(entry, io.BytesIO(image))


def _source_archive(out: Path) -> None:
    """Of what is committed: a checkout may hold the roots of whole systems, through which the builder would walk."""
    source = WORK / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    committed = WORK / "source.tar"
    _run("git", "archive", "--output", committed, "HEAD")
    with tarfile.open(committed) as archive:
        archive.extractall(source, filter="data")
    _run(
        sys.executable, "-c",
        "import os, sys; os.chdir(sys.argv[1]); from scikit_build_core.build import build_sdist as b; b(sys.argv[2])",
        source, out, quiet=True,
    )  # fmt: skip


def _interpreter(version: str) -> str:
    """A Python of ``version`` whose headers do for every architecture; a distribution's are for its own."""
    script = (
        "import sysconfig, pathlib; print((pathlib.Path(sysconfig.get_paths()['include']) / 'pyconfig.h').read_text())"
    )
    beside = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        *filter(
            None,
            [shutil.which(f"python{version}"), sys.executable, os.environ.get(f"PYTHON{version.replace('.', '')}")],
        ),
        *map(str, sorted(beside.glob(f"{version}.*/bin/python{version}"))),
    ]
    for candidate in candidates:
        said = subprocess.run(
            [candidate, "-c", f"import sys; print('%d.%d' % sys.version_info[:2]); {script}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if said.returncode == 0 and said.stdout.startswith(f"{version}\n") and "multiarch" not in said.stdout:
            return candidate
    hint = f"pyenv install {version}, or name one: PYTHON{version.replace('.', '')}=/path/to/python{version}"
    sys.exit(f"error: no Python {version} with headers that are not one distribution's\n\nhint: {hint}")


def _version() -> str:
    return str(tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"])


def _output(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: object, quiet: bool = False) -> None:
    """Runs a command with .venv's programs before others. Ends this program if it fails, with what it wrote."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*map(str, command)], cwd=SOURCE, env=os.environ | {"PATH": path}, check=False, text=True,
        stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}error: {command[0]} failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
