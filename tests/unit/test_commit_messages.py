"""tools/commit_messages.py: which messages it refuses, and where it finds no history."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

TOOL = Path(__file__).resolve().parents[2] / "tools" / "commit_messages.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commit_messages", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "message",
    [
        "Add a group key for priorities",
        "serve: Say why a request was refused\n\nThe client saw 503 without a reason.\n",
        "hook, arbiter: move the token's page",
        "Feed the planner what was measured",
        "Address the reviewer's remarks",
        "Merge branch 'attack'",
        "Say " + "x" * 68,
        "Say less\n# a comment that git writes\n",
    ],
)
def test_good_messages(tool: ModuleType, message: str) -> None:
    assert tool.faults(message) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("", "empty"),
        ("Say " + "x" * 69, "73 characters; expected at most 72"),
        ("Add a key.", "full stop"),
        ("x", "what is done to what"),
        ("server: Format", "what is done to what"),
        ("Added a key", "'Added'"),
        ("serve: adding a key", "'adding'"),
        ("plan: fixes the sum", "'fixes'"),
        ("The plan is kept", "'The'"),
        ("Add a key\nand another", "second line"),
    ],
)
def test_bad_messages(tool: ModuleType, message: str, fault: str) -> None:
    (found,) = tool.faults(message)
    assert fault in found


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "protocol.file.allow=always",
    ]
    command = ["git", "-C", folder, *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, subject: str) -> str:
    git(folder, "commit", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def test_only_commits_since_the_rules_are_checked(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, shallow = tmp_path / "full", tmp_path / "shallow"
    full.mkdir()
    monkeypatch.setattr(tool, "ROOT", full)
    assert tool.commits() is None  # a tarball
    git(full, "init", "-q")
    assert tool.commits() is None
    monkeypatch.setattr(tool, "BASE", commit(full, "Moved."))
    commit(full, "Add one")
    commit(full, "Add two")
    assert [message.strip() for _, message in tool.commits()] == ["Add two", "Add one"]
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{full}", str(shallow))
    monkeypatch.setattr(tool, "ROOT", shallow)
    assert [message.strip() for _, message in tool.commits()] == ["Add two"]
    monkeypatch.setattr(tool, "ROOT", full)
    monkeypatch.setattr(tool, "BASE", "0" * 40)  # the history was written anew
    assert tool.commits() is None
