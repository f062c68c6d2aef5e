"""The wheel alone, in empty environments: pip and uv, each Python of this machine and of the roots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels.conftest import WHEELS, wheel_for

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PYTHONS = [str(each) for minor in (11, 12, 13, 14) for each in sorted(PYENV.glob(f"3.{minor}.*/bin/python"))[-1:]]


def run(*command: object, home: Path) -> str:
    """What the command prints, with an environment that knows nothing of this checkout."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "GEMLET_RUNTIME_DIR": str(home / "run")}
    network = {
        name: value for name, value in os.environ.items() if name.lower().endswith(("_proxy", "_index_url", "cert"))
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=home,
        env=environment | network,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def check(gemlet: Path, home: Path) -> None:
    """The installed command starts a simulated daemon, runs a program on a share, and finds itself in order."""
    assert "gemlet" in run(gemlet, "--version", home=home)
    try:
        said = run(gemlet, "run", "--simulate", "--min", "30%", "--", "sh", "-c", "echo $LD_PRELOAD", home=home)
        assert "libgemhook.so.1" in said
        groups = json.loads(run(gemlet, "status", "--simulate", "-o", "json", home=home))
        assert groups["simulated"] is True
        checks = json.loads(run(gemlet, "doctor", "-o", "json", home=home))["checks"]
        assert {check["name"]: check["verdict"] for check in checks}["hook works"] == "ok"
    finally:
        run(gemlet, "stop", "--simulate", home=home)


def test_there_are_wheels():
    assert WHEELS, "run `make wheels`"


@pytest.mark.parametrize("python", PYTHONS or [sys.executable], ids=lambda python: Path(python).parts[-3])
def test_pip(python, tmp_path):
    run(python, "-m", "venv", tmp_path / "venv", home=tmp_path)
    pip = tmp_path / "venv/bin/pip"
    # pip chooses among the wheels as it would on PyPI; what they need comes from there.
    run(
        pip,
        "install",
        "--quiet",
        "--only-binary",
        "gemlet",
        "--find-links",
        wheel_for("x86_64").parent,
        "gemlet",
        home=tmp_path,
    )
    check(tmp_path / "venv/bin/gemlet", tmp_path)


@pytest.mark.parametrize("python", PYTHONS[-1:] or [sys.executable], ids=lambda python: Path(python).parts[-3])
def test_uv_tool_install(python, tmp_path):
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed: `make wheel-test` does it")
    run(uv, "tool", "install", "--python", python, "--find-links", wheel_for("x86_64").parent, "gemlet", home=tmp_path)
    check(tmp_path / ".local/bin/gemlet", tmp_path)
