"""Lines of a log that quote what strangers sent."""

from __future__ import annotations

import logging
import sys

from gemlet.daemon import logs

DELETE, SHOWN = "\x7f", "\\x7f"


def formatted(message, exc_info=None):
    record = logging.LogRecord("gemlet", logging.INFO, __file__, 1, "refused: %s", (message,), exc_info)
    return logs.PrintableFormatter("%(message)s").format(record)


def test_what_is_long_is_cut_before_it_is_made_printable():
    """Of a review of 8 MiB the webhook made 500 MB, and answered nobody for seven seconds."""
    line = formatted(DELETE * (2 * logs.MOST_CHARACTERS))
    assert line.startswith("refused: " + SHOWN)
    assert line.endswith(f"{SHOWN} ... and {logs.MOST_CHARACTERS + len('refused: ')} characters")
    assert len(line) < 5 * logs.MOST_CHARACTERS
    assert formatted("short\n") == "refused: short\\x0a"


def test_of_a_long_traceback_the_end_is_kept():
    try:
        raise ValueError(DELETE * (2 * logs.MOST_CHARACTERS) + "the end")
    except ValueError:
        line = formatted("x", sys.exc_info())
    assert line.endswith("the end")
    assert len(line) < 5 * logs.MOST_CHARACTERS
