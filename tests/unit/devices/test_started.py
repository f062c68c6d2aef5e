"""When processes were started, also where the kernel does not say."""

from __future__ import annotations

import os
import subprocess
import threading

from gemlet.devices import started as module
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


def test_a_user_of_many_uids_is_waited_for_once(monkeypatch):
    go_on, looked_at = threading.Event(), []

    def look(pid):
        looked_at.append(pid)
        return 7 if go_on.wait(60) else 0

    monkeypatch.setattr(module, "_look", look)
    monkeypatch.setattr(module, "_late", {})
    monkeypatch.setattr(module, "PATIENCE", 0.001)
    monkeypatch.setattr("gemlet.accounts._account", lambda uid: 1000 if uid >= 100_000 else uid)
    try:
        assert [started(pid, 100_000 + pid) for pid in range(1, 9)] == [0] * 8
        assert looked_at == [1]
        assert started(9, 1000) == 0
        assert looked_at == [1]
        assert started(10, 1001) == 0
        assert looked_at == [1, 10]
    finally:
        go_on.set()
