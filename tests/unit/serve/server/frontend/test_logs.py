"""The log over HTTP."""

from __future__ import annotations

import logging

from gemlet.serve.server.frontend.logs import LogTail


def test_nothing_in_a_line_acts_on_a_terminal_or_makes_another_line():
    tail = LogTail()
    tail.handle(
        logging.makeLogRecord({"msg": "%s failed", "args": ("\x1b[2Jx\n2026-01-01 ERROR y",), "levelname": "ERROR"})
    )
    (line,) = tail.last(1)
    assert line.endswith(r" ERROR \x1b[2Jx\x0a2026-01-01 ERROR y failed")
    assert line.isprintable()
