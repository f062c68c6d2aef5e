"""When processes were started, also where the kernel does not say."""

from __future__ import annotations

import os
import subprocess

from gemlet.devices.mps import process
from gemlet.devices.started import started
from tests.hanging_exec import USER, hanging


def test_of_a_process_of_ones_own_and_of_none():
    with subprocess.Popen(["sleep", "1000"]) as child:
        assert started(child.pid, os.getuid()) > 0
        assert started(child.pid, USER) == started(child.pid, os.getuid())
        child.kill()
    assert started(child.pid, USER) == 0


def test_nobody_waits_for_one_that_cannot_be_looked_at():
    with hanging() as pid:
        for _ in range(100):
            found = process(pid)
            assert found is not None
            assert found.uid == USER
        again = [started(pid, USER) for _ in range(2)]
        assert again[0] == again[1], "known, or not yet"
