"""The log by a thread: who logs waits for nobody who reads it."""

from __future__ import annotations

import logging
import os

from gemlet.daemon import log_writer
from gemlet.daemon.log_writer import LogWriter


def test_a_pipe_that_is_not_read_holds_up_nobody_and_what_is_lost_is_told(monkeypatch):
    monkeypatch.setattr(log_writer, "MAX_LINES", 10)
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.01)
    read, write = os.pipe()
    writer = LogWriter(write)
    for number in range(100):
        writer.handle(logging.makeLogRecord({"msg": f"{number} " + "x" * 10_000}))
    writer.flush()
    written = []
    with os.fdopen(read) as lines:
        # Where the thread wrote meanwhile, what was lost until then is told between them.
        while writer._lines.full():
            written.append(lines.readline())
        writer.tell("afterwards")
        while not written or written[-1] != "afterwards\n":
            written.append(lines.readline())
    told = [int(line.split()[0]) for line in written if "lines of the log were lost" in line]
    kept = [int(line.split()[0]) for line in written if "x" * 10_000 in line]
    assert kept[0] == 0
    assert kept == sorted(kept)
    assert sum(told) + len(kept) == 100
    assert len(kept) < 100


def test_a_full_disk_and_text_of_no_encoding_end_nothing():
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full)
    writer.tell("lost")
    writer.flush()
    read, write = os.pipe()
    os.dup2(write, full)
    writer.tell("\ud800 written")
    with os.fdopen(read) as lines:
        assert lines.readline() == "\\ud800 written\n"
