"""The picture of the page in README.md, made only where GEMLET_PICTURES names a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Gemlet
from tests.e2e.programs import SPIN
from tests.waiting import eventually
from tests.web.conftest import daemon, program, serve
from tests.web.test_page import open_, until

FOLDER = os.environ.get("GEMLET_PICTURES")
PACED = SPIN.replace('check("cuCtxSynchronize")', 'check("cuCtxSynchronize"); time.sleep(float(sys.argv[2]))')
SHOWN = 240  # seconds of history in the picture
HEIGHT = 1010  # where the table of groups ends


@pytest.mark.skipif(FOLDER is None, reason="GEMLET_PICTURES names no folder: pictures are made when the page changes")
def test_a_picture_of_a_morning(page, tmp_path_factory):
    gemlet = Gemlet(tmp_path_factory.mktemp("g"))

    def paced(group, pause, *limits):
        command = (sys.executable, "-c", PACED, "3000", str(pause))
        gemlet.start("run", "--simulate", "-q", "--group", group, *limits, "--", *command)

    try:
        daemon(gemlet, "--no-config")
        program(gemlet, "train", "--min", "50%", "--memory", "40GiB")
        paced("chat-api", 0.2, "--priority", "latency", "--min", "10%", "--memory", "20GiB")
        page.wait_for_timeout(1000 * SHOWN / 4)
        program(gemlet, "notebook", "--priority", "best-effort", "--max", "20%", "--memory", "8GiB")
        page.wait_for_timeout(1000 * SHOWN / 4)
        paced("nightly-eval", 0.05, "--memory", "16GiB")
        page.set_viewport_size({"width": 1280, "height": HEIGHT})
        open_(page, serve(gemlet, "--write"), rows=4)
        page.wait_for_timeout(1000 * SHOWN / 2)
        until(page, "/chat-api/.test(document.querySelector('#now').textContent)")
        page.screenshot(path=Path(FOLDER) / "page.png")
    finally:
        for process in gemlet.started:
            process.kill()
            process.communicate()
        gemlet("stop", "--simulate")
        eventually(lambda: gemlet("status", "--simulate").returncode != 0)
