"""The images' own command, without building an image."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

IMAGE = Path(__file__).resolve().parents[3] / "packaging" / "image"


def test_a_process_that_the_command_spawns_does_not_run_it_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(IMAGE))
    launcher = tmp_path / "gemlet"
    launcher.write_text(runpy.run_path(str(IMAGE / "build.py"))["LAUNCHER"])
    ran = []
    monkeypatch.setattr("gemlet.__main__.main", lambda: ran.append(sys.argv))
    monkeypatch.setattr("gemlet.cli.main.main", lambda: ran.append(sys.argv))
    runpy.run_path(str(launcher), run_name="__mp_main__")  # as multiprocessing imports it
    assert not ran
    runpy.run_path(str(launcher), run_name="__main__")
    assert len(ran) == 1
