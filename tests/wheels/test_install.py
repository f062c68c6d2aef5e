"""The wheel alone, in empty environments: pip and uv, each Python of this machine and of the roots."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels.conftest import WHEELS, wheel_for
from tests.wheels.roots import root

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PYTHONS = [str(each) for minor in (11, 12, 13, 14) for each in sorted(PYENV.glob(f"3.{minor}.*/bin/python"))[-1:]]


def run(*command: object, home: Path) -> str:
    """What the command prints, with an environment that knows nothing of this checkout."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "GEMLET_RUNTIME_DIR": str(home / "run")}
    network = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith(("_proxy", "_index_url", "cert", "_certs"))
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
def test_uv_tool_install(python, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "UV_SYSTEM_CERTS", "1"
    )  # a mirror's certificate may be one that this machine's administrator added
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed: `make wheel-test` does it")
    run(uv, "tool", "install", "--python", python, "--find-links", wheel_for("x86_64").parent, "gemlet", home=tmp_path)
    check(tmp_path / ".local/bin/gemlet", tmp_path)


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid", "noble"])
def test_pip_with_the_python_of_a_root(suite, tmp_path):
    made = root(suite)
    asked = "import sys; print(*sys.version_info[:2], sep='.')"
    version = run("/usr/sbin/chroot", made, "/usr/bin/python3", "-c", asked, home=tmp_path).strip()
    inside = Path("/opt/install")
    shutil.rmtree(made / "opt/install", ignore_errors=True)
    # The root has no network of its own: what is needed is fetched for its Python, by this one.
    platforms = [
        part
        for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        for part in ("--platform", f"{name}_x86_64")
    ]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", version]
    wheels = made / "opt/install/wheels"
    run(*download, *platforms, "--find-links", wheel_for("x86_64").parent, "--dest", wheels, "gemlet", home=tmp_path)
    enter = ["/usr/sbin/chroot", made, "/usr/bin/env", f"HOME={inside}", f"GEMLET_RUNTIME_DIR={inside}/run"]
    run(*enter, "python3", "-m", "venv", inside / "venv", home=tmp_path)
    pip = [*enter, inside / "venv/bin/pip", "install", "--quiet", "--no-index"]
    run(*pip, "--find-links", inside / "wheels", "gemlet", home=tmp_path)
    said = run(
        *enter, inside / "venv/bin/python", "-c", "import gemlet._native; print(gemlet._native.__file__)", home=tmp_path
    )
    assert said.startswith(f"{inside}/venv/lib/python{version}/")
    assert "gemlet" in run(*enter, inside / "venv/bin/gemlet", "--version", home=tmp_path)
