"""Builds what the tests of the hook run, only what changed; most of it are objects of the hook itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compiled import locked
from tests.counting import instructions

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
    """The products of tests/sim/hook/native: the target hook-tests of the build of the native parts."""

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
        return subprocess.run(
            self._command(command),
            env=self._environment(preload, driver) | (env or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def instructions(self, *command: str, function: str, preload: tuple[str, ...] = ("hook",)) -> int:
        """That such a program executes in one of its functions."""
        return instructions(self._command(command), function, self._environment(preload, "plain"))

    def _command(self, command: tuple[str, ...]) -> list[str]:
        return [str(self.folder / command[0]), *command[1:]]  # an absolute path stays as it is

    def _environment(self, preload: tuple[str, ...], driver: str) -> dict[str, str]:
        libraries = {"hook": self.hook} | {n: self.folder / f"lib{n}.so" for n in ("first", "second", "spy")}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        environment["LD_LIBRARY_PATH"] = str(self.folder / f"driver-{driver}")
        environment["LD_PRELOAD"] = ":".join(str(libraries[name]) for name in preload)
        return environment


@pytest.fixture(scope="session")
def built() -> Built:
    build = ROOT / "build" / "native"
    if not (build / "build.ninja").exists():
        pytest.fail(f"{build} does not exist: run `make native` first", pytrace=False)
    folder = build / "hook-tests"
    with locked(folder):
        done = subprocess.run(
            [_tool("cmake"), "--build", str(build), "--target", "hook-tests"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
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
