"""Waiting for what will happen, with a deadline."""

from __future__ import annotations

import time


def eventually(condition, seconds=60.0):
    """What ``condition`` returns as soon as it is true. Fails after ``seconds``."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, "did not happen in time"
        time.sleep(0.01)
    return value
