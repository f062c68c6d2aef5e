"""When Python looks at all objects for those that only know each other.

It holds up everybody, for as long as there are many objects: half a second where clients have 100,000 requests under
way. Left to itself, Python does so whenever there are a quarter more than before, so each second while clients come.
Here it does so after a long time in which it did not. What is young is looked at as ever, which is little.
"""

from __future__ import annotations

import gc
import time

NEVER = 1 << 30
PART = 0.001  # of all time, at most, for the looks at all objects
LOOK_S = 10.0  # between questions whether it is time


class Garbage:
    """From now on. Objects that are there stay: nobody looks at them any more."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)
        self.clock = time.monotonic
        self._next = 0.0

    def look(self) -> None:
        """If it is time; to be called every LOOK_S."""
        began = self.clock()
        if began >= self._next:
            gc.collect()
            now = self.clock()
            self._next = now + (now - began) / PART
