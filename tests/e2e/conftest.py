"""Runs the real command line with the real native parts on a simulated machine, each test in its own directory."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gemlet import paths
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60.0


def _missing() -> str | None:
    try:
        paths.hook_path()
        paths.sim_dir()
        importlib.import_module("gemlet._native")
    except (GemletError, ImportError) as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    if reason is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"the native parts are not built: {reason}"))


@dataclass
class Gemlet:
    """The command line with its own runtime directory; ends what it started."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_")) and k != "LD_PRELOAD"}
        kept |= {k: v for k, v in os.environ.items() if k == "GEMLET_LIB_DIR"}
        kept["GEMLET_RUNTIME_DIR"] = str(self.directory)
        kept["XDG_CONFIG_HOME"] = str(self.directory / "config")
        kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return kept | changes

    def __call__(self, *arguments: str, timeout: float = SECONDS, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str, new_session: bool = False, **changes: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(*arguments),
            env=self.environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=new_session,
        )
        self.started.append(process)
        return process

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "gemlet.cli.main", *arguments]


@pytest.fixture
def gemlet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gemlet]:
    made = Gemlet(tmp_path_factory.mktemp("g"))
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    for simulate in ([], ["--simulate"]):
        made("stop", *simulate)
