"""C and C++ programs of the tests: each is compiled once, however many sessions and workers use it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[1] / "build" / "tests"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes this the only process of the machine that builds in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cuda_include() -> Path:
    """The folder of cuda.h: the runtime wheel's, or that of an installed toolkit. Skips the test without one."""
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"
    for folder in (wheel, Path("/usr/local/cuda/include")):
        if (folder / "cuda.h").is_file():
            return folder
    pytest.skip("cuda.h is not installed")


def compiled(compiler: str, *arguments: object, sources: tuple[Path, ...], headers: tuple[Path, ...] = ()) -> Path:
    """What the compiler makes of the sources. ``headers``: what they include that may change, too."""
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"{compiler} is not installed")
    command = [path, *map(str, sources), *map(str, arguments)]
    key = hashlib.sha256("\0".join(command).encode())
    for file in (*sources, *headers):
        key.update(file.read_bytes())
    made = FOLDER / f"{sources[0].stem}-{key.hexdigest()[:16]}"
    with locked(FOLDER):
        if not made.exists():
            unfinished = made.with_suffix(".unfinished")
            subprocess.run([*command, "-o", str(unfinished)], check=True)
            unfinished.replace(made)
    return made


def compiled_text(compiler: str, *arguments: object, text: str, suffix: str = ".c") -> Path:
    """What the compiler makes of one source that is written in a test."""
    source = FOLDER / "texts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}{suffix}"
    with locked(source.parent):
        if not source.exists():
            source.write_text(text)
    return compiled(compiler, *arguments, sources=(source,))
