"""What any model may change of the process that it shares with others, and what is put right before they need it.

Most of it is no malice: a library that is fond of recursion asks for large stacks of all threads to come.
"""

from __future__ import annotations

import resource
import sys
import threading

# Seconds that a thread may keep the interpreter while others wait for it. While graphs are captured one thread is in
# Python for long, and with Python's 5 ms every gpu-let waits that long each time that it has to come back.
SWITCH_INTERVAL = 100e-6
KINDS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Settings:
    """As they are when this is made, which is before there is a model."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._limits = {kind: resource.getrlimit(kind) for kind in KINDS}
        self._stack = threading.stack_size()

    def restore(self) -> None:
        """What is for all that the process does."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        for kind, limit in self._limits.items():
            now = resource.getrlimit(kind)
            if now != limit:
                try:
                    resource.setrlimit(kind, limit)
                except (OSError, ValueError):  # the hard one is lower now, which takes a privilege to change
                    resource.setrlimit(kind, (now[1], now[1]))

    def start(self, thread: threading.Thread) -> None:
        """With a stack as usual; a model's own threads have what it asked for."""
        asked = threading.stack_size(self._stack)
        try:
            thread.start()
        finally:
            threading.stack_size(asked)
