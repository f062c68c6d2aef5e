"""What the shell is offered: asked as the completion scripts ask."""

from __future__ import annotations

import os

import pytest
from click.shell_completion import ShellComplete

from gemlet.cli.main import command
from tests.unit.daemon.conftest import Starter


@pytest.fixture
def machine(monkeypatch, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "trainer").touch(mode=0o755)
    (programs / "trash").touch(mode=0o644)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/nonexistent")
    daemon = Starter(tmp_path)()
    daemon.call("join", group="team")
    daemon.call("join", group="team-2")
    yield tmp_path
    daemon.stop()


def offered(*words: str) -> list[str]:
    shell = ShellComplete(command, {}, "gemlet", "_GEMLET_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_groups_of_the_daemon(machine):
    at = ("--socket", str(machine))
    assert offered(*at, "set", "tea") == ["team", "team-2"]
    assert offered(*at, "explain", "team-") == ["team-2"]
    assert offered(*at, "run", "--group", "team-") == ["team-2"]
    assert offered("--socket", str(machine / "elsewhere"), "set", "tea") == []


@pytest.mark.parametrize(
    "name", ["t$(id)", "t`id`", "t;id", "t|id", "t id", "t!!", "t>f", "t'", 't"', "t*", "t\\", "t&"]
)
def test_a_name_that_a_shell_would_run_is_not_offered(tmp_path, name):
    """Bash does not quote what it puts on the line, and who types may be root, and the group another user's."""
    daemon = Starter(tmp_path)()
    try:
        for each in (name, "t-1/p.c~0", "t\u00e9"):
            daemon.call("join", group=each)
        assert offered("--socket", str(tmp_path), "explain", "t") == ["t-1/p.c~0", "t\u00e9"]
    finally:
        daemon.stop()


def test_policies_and_models():
    assert "gpulet" in offered("plan", "--policy", "gpu")
    assert "resnet50" in offered("profile", "res")
    assert offered("daemon", "--policy", "g") == ["gemini"]
    assert offered("simulate", "--policy", "") == ["fair", "gemini", "fifo", "none"]
    assert "gpulet" in offered("simulate", "--serve", __file__, "--policy", "gpu")


def test_the_command_of_run(machine):
    assert offered("run", "--", "tra") == ["tra", "trainer"]  # the first stands for files
    assert offered("run", "--", "trainer", "tra") == ["tra"]
