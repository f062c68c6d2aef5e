from __future__ import annotations

import os

import pytest

from gemlet.cli import run
from gemlet.cli.handing_over import ALWAYS, SOME, handed_over


@pytest.mark.parametrize(
    "command",
    [
        "docker run IMAGE",
        "/usr/bin/podman run IMAGE",
        "ssh host python train.py",
        "sudo python train.py",
        "tmux new-session",
        "chroot /srv/root python train.py",
        "apptainer exec --nv image.sif python train.py",
        "systemd-run --user python train.py",
        "env -i A=b python train.py",
        "env A=b --ignore-environment python",
    ],
)
def test_who_has_others_start_programs_is_told_so(command):
    """They get what `gemlet run` sets no more than those of any other shell."""
    words = command.split()
    said = handed_over(words)
    assert said is not None
    assert said.message.startswith(f"{os.path.basename(words[0])} ")  # noqa: PTH119
    assert "{" not in said.message + said.hint


@pytest.mark.parametrize(
    "command",
    ["python train.py", "env A=b python -i", "systemd-run --user --scope python", "nohup ssh", "./docker.py", "env"],
)
def test_nothing_is_said_of_others(command):
    assert handed_over(command.split()) is None


def test_run_knows_all_of_them():
    assert {*ALWAYS, *SOME} == run.HANDING_OVER


def test_a_program_of_a_snap_is_started_by_another(tmp_path, monkeypatch):
    """By one that has rights of its own, for which the loader preloads nothing."""
    monkeypatch.setattr(run, "SNAP", str(tmp_path / "snap"))
    (tmp_path / "snap").touch(mode=0o755)
    (tmp_path / "blender").symlink_to("snap")
    said = run.unlimited(("blender",), str(tmp_path / "blender"), os.environ, strict=False)
    assert said is not None
    assert said[0].startswith("snap starts programs where the hook")


def test_strict_refuses_them(tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\n")
    assert run.unlimited(("sudo", "true"), str(sudo), os.environ, strict=False) == handed_over(["sudo", "true"])
    with pytest.raises(run.NotExecutable, match="clears the environment") as error:
        run.unlimited(("sudo", "true"), str(sudo), os.environ, strict=True)
    assert error.value.hint is not None
    assert "sudo gemlet run" in error.value.hint
