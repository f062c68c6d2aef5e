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
        "env --ignore-env python",
        "env -u A -i python",
        "env --chdir / -i python",
        "env -vi python",
        "env -C/srv -i python",
        "env -u LD_PRELOAD python",
        "env -uLD_PRELOAD python",
        "env --unset LD_PRELOAD python",
        "env --unset=LD_PRELOAD python",
        "env LD_PRELOAD= python",
        "env A=b LD_PRELOAD=/usr/lib/libjemalloc.so.2 python",
        "env -S-i python",
        "su - ana -c python",
        "su ana --login",
        "runuser -l ana",
    ],
)
def test_who_has_others_start_programs_is_told_so(command):
    """They get what `gemlet run` sets no more than those of any other shell."""
    words = command.split()
    said = handed_over(words)
    assert said is not None
    assert said.message.startswith(f"{os.path.basename(words[0])} ")  # noqa: PTH119
    assert "{" not in said.message + said.hint


OTHERS = ("env -u A python -i", "env -uil python", "env -C / -- python -i", "env -S python", "su ana -c python")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "env A=b python -i",
        "systemd-run --user --scope python",
        "nohup ssh",
        "./docker.py",
        "env",
        *OTHERS,
    ],
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
