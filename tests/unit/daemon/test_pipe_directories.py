"""Pipe directories that others name hold up nobody else."""

from __future__ import annotations

import asyncio
import os
import threading

from gemlet.daemon.pipe_directories import MOST_WAITING, PipeDirectories
from gemlet.devices.mps import PID_FILE, Process

ANA, LUIS = 2001, 2002
CONTROL = Process(pid=7, uid=0, command="control", started=1)


def test_a_directory_that_hangs_holds_up_who_named_it():
    go_on, asked = threading.Event(), []

    def look(place):
        asked.append(place)
        assert place != "hangs" or go_on.wait(60)
        return CONTROL

    async def run():
        directories = PipeDirectories(look)
        assert await directories.find(["hangs"], asked_by=ANA, patience=0.01) == {}
        assert await directories.find(["a", "b"], asked_by=LUIS, patience=60.0) == {"a": CONTROL, "b": CONTROL}
        for n in range(2 * MOST_WAITING):
            assert await directories.find([str(n)], asked_by=ANA, patience=0.0001) == {}
        assert directories._aside.waiting(ANA) == MOST_WAITING
        go_on.set()
        assert await directories.find(["late"], asked_by=ANA, patience=60.0) in ({}, {"late": CONTROL})
        assert await directories.find(["again"], asked_by=ANA, patience=60.0) == {"again": CONTROL}

    asyncio.run(run())
    assert asked[0] == "hangs"


def test_a_control_daemon_is_found_by_its_pid_file(tmp_path):
    (tmp_path / PID_FILE).write_text(f"{os.getpid()}\n")
    found = asyncio.run(PipeDirectories().find([str(tmp_path), str(tmp_path / "none"), "\0"], asked_by=ANA))
    assert [(place, control.pid) for place, control in found.items()] == [(str(tmp_path), os.getpid())]
