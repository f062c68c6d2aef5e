"""Builds what the tests of the hook run, once a session and only what changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compiled import cuda_include, locked

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))  # the first one builds


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


@dataclass(frozen=True)
class Built:
    """The products of tests/sim/hook/native."""

    folder: Path

    @property
    def hook(self) -> Path:
        return self.folder / "libgemhook.so.1"

    def run(
        self,
        *command: str,
        preload: tuple[str, ...] = ("hook",),
        driver: str = "plain",
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the build folder (or an absolute path) under the preloads, in order, with a fake driver."""
        libraries = {"hook": self.hook} | {n: self.folder / f"lib{n}.so" for n in ("first", "second", "spy")}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        environment["LD_LIBRARY_PATH"] = str(self.folder / f"driver-{driver}")
        environment["LD_PRELOAD"] = ":".join(str(libraries[name]) for name in preload)
        program = command[0] if command[0].startswith("/") else str(self.folder / command[0])
        return subprocess.run(
            [program, *command[1:]],
            env=environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="session")
def built() -> Built:
    folder = ROOT / "build" / "hook-tests"
    options = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_MAKE_PROGRAM": _tool("ninja"),
        "CUDA_INCLUDE": str(cuda_include()),
    }
    configure = [_tool("cmake"), "-S", str(FOLDER / "native"), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    with locked(folder):
        for command in (configure, [_tool("cmake"), "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.fail(f"building {folder} failed\n{done.stdout[-4000:]}{done.stderr[-4000:]}", pytrace=False)
    return Built(folder)


@pytest.fixture(scope="session")
def lines(built: Built) -> Callable[..., list[str]]:
    """Runs a program as Built.run does, expects success, and returns its output line by line."""

    def run(*command: str, **options: object) -> list[str]:
        done = built.run(*command, **options)  # type: ignore[arg-type]
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.splitlines()

    return run
