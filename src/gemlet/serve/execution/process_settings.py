"""What any model may change of the process that it shares with others, and what is put right before they need it.

Most of it is no malice: a library that is fond of recursion asks for large stacks of all threads to come.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._hooks = [(module, module.excepthook) for module in (sys, threading)]
        self._starting = threading.Lock()

    def restore(self) -> None:
        """What is for all that the process does."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        for module, hook in self._hooks:
            if getattr(module, "excepthook", None) is None:  # without, Python makes no thread
                module.excepthook = hook  # type: ignore[attr-defined]
        for kind, limit in self._limits.items():
            now = resource.getrlimit(kind)
            if now != limit:
                try:
                    resource.setrlimit(kind, limit)
                except (OSError, ValueError):  # the hard one is lower now, which takes a privilege to change
                    resource.setrlimit(kind, (now[1], now[1]))

    def start(self, target: Callable[..., object], *args: object, name: str, daemon: bool = False) -> threading.Thread:
        """A thread with a stack as usual, that nothing watches; a model's own threads have what it asked for."""
        begun = threading.Event()

        def work() -> None:
            begun.set()
            target(*args)

        with self._starting:
            self.restore()
            thread = threading.Thread(target=work, name=name, daemon=daemon)
            asked, trace, profile = threading.stack_size(self._stack), threading.gettrace(), threading.getprofile()
            threading.settrace(None)
            threading.setprofile(None)
            try:
                thread.start()
                begun.wait()  # Python looks for what is to watch it before that
            finally:
                threading.stack_size(asked)
                threading.settrace(trace)
                threading.setprofile(profile)
        return thread
