"""Where files are looked for, and which runtime directories are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemlet import paths
from gemlet.daemon import address
from gemlet.errors import ConfigError, GemletError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("GEMLET_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_libraries_lie_in_the_package_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paths.lib_dir() == str(Path(paths.__file__).parent / "_lib")
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    (tmp_path / "libgemhook.so.1").touch()
    assert paths.hook_path() == str(tmp_path / "libgemhook.so.1")


def test_relative_library_directory_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # LD_PRELOAD with a relative path breaks as soon as the program changes its directory.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMLET_LIB_DIR", "lib")
    assert paths.lib_dir() == str(tmp_path / "lib")


@pytest.mark.parametrize("find", [paths.hook_path, paths.sim_dir])
def test_missing_library_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, find) -> None:
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    with pytest.raises(GemletError, match="does not exist") as caught:
        find()
    assert "make native" in caught.value.hint


def test_a_hook_that_no_loader_would_load_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a home that is mounted noexec: the loader says so, and starts the program without its limits."""
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    (tmp_path / "libgemhook.so.1").touch()
    real = os.statvfs

    def noexec(path: str) -> SimpleNamespace:
        return SimpleNamespace(f_flag=real(path).f_flag | os.ST_NOEXEC)

    monkeypatch.setattr(os, "statvfs", noexec)
    with pytest.raises(GemletError, match=r"\(noexec\): the dynamic loader") as caught:
        paths.hook_path()
    assert caught.value.hint is not None
    assert "GEMLET_LIB_DIR" in caught.value.hint
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(GemletError, match="cannot be read"):
        paths.hook_path()


def test_runtime_directory_prefers_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.socket_path() == str(tmp_path / "gemlet" / "gemlet.sock")
    assert paths.api_path() == str(tmp_path / "gemlet" / "api.sock")
    assert (tmp_path / "gemlet").stat().st_mode & 0o777 == 0o700


def test_a_daemon_of_a_session_is_found_outside_of_it_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As by cron, or su: a second one would promise the same device once more."""
    monkeypatch.setattr(paths, "SHARED", str(tmp_path / "tmp"))
    monkeypatch.setattr(paths, "SESSIONS", str(tmp_path / "run"))
    session = tmp_path / "run" / str(os.getuid())
    session.mkdir(mode=0o700, parents=True)
    with monkeypatch.context() as inside:
        inside.setenv("XDG_RUNTIME_DIR", str(session))
        assert [str(each.directory) for each in address.candidates()[1:]] == [f"{session}/gemlet"]
    outside = f"{tmp_path}/tmp/gemlet-{os.getuid()}"
    assert [str(each.directory) for each in address.candidates()[1:]] == [f"{session}/gemlet", outside]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert [str(each.directory) for each in address.candidates()[1:]] == [outside, f"{session}/gemlet"]
    Path(outside).chmod(0o777)  # another may pose as the daemon
    assert [str(each.directory) for each in address.candidates()[1:]] == [f"{session}/gemlet"]
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path / "chosen"))
    assert [str(each.directory) for each in address.candidates()[1:]] == [str(tmp_path / "chosen")]


def test_named_runtime_directory_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path / "a" / "b"))
    assert paths.runtime_dir() == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_runtime_directory_open_to_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "gemlet").mkdir()
    (tmp_path / "gemlet").chmod(0o777)
    with pytest.raises(GemletError, match="other users can write"):
        paths.runtime_dir()


def test_runtime_directory_behind_a_symlink_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "gemlet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GemletError, match="not a directory"):
        paths.runtime_dir()


def test_runtime_directory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its session is not used at all: `su` leaves it to root, and that user could put another daemon in ours' place."""
    (tmp_path / "session").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    monkeypatch.setattr(paths, "SHARED", str(tmp_path))
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)
    with pytest.raises(GemletError, match=f"gemlet-{uid} belongs to another user"):
        paths.runtime_dir()
    assert not (tmp_path / "session" / "gemlet").exists()


def test_session_that_others_can_write_to_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "SHARED", str(tmp_path))
    (tmp_path / "session").mkdir()
    (tmp_path / "session").chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    assert paths.runtime_dir() == str(tmp_path / f"gemlet-{os.getuid()}")


def test_configuration_search_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", str(tmp_path / "system.toml"))
    assert paths.config_path() is None
    files = [tmp_path / "system.toml", Path(paths.user_config_path()), tmp_path / "env.toml", tmp_path / "option.toml"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if file.name == "env.toml":
            monkeypatch.setenv("GEMLET_CONFIG", str(file))
        option = str(file) if file.name == "option.toml" else None
        assert paths.config_path(option) == str(file)


def test_named_configuration_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMLET_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no such file") as caught:
        paths.config_path()
    assert "GEMLET_CONFIG" in caught.value.hint


def test_import_costs_nothing() -> None:
    # Compared by what is loaded, not by the clock: a busy machine must not fail the test.
    code = "import os, sys; before = set(sys.modules); import gemlet.paths; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, timeout=30,
                            env={"PYTHONPATH": str(Path(paths.__file__).parents[1])}).stdout.split()  # fmt: skip
    assert set(loaded) <= {"__future__", "gemlet", "gemlet.errors", "gemlet.paths", "stat", "_stat"}
