"""When a process was started: with its pid that names it for ever.

The kernel shows that of a program in exec(2) no sooner than it has left it, and there a program may stay for as long as
it likes: it closes files, and their file system may be its own. So processes of other users are looked at in threads,
for which nobody waits long.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from pathlib import Path

from gemlet.accounts import account_of

PATIENCE = 0.1  # seconds; a look takes 50 us, and more on a busy machine
AFTERWARDS = 5.0  # for which nobody waits again for a user one of whose looks took longer

_lock = threading.Lock()
_late: dict[int, float] = {}  # users one of whose looks took longer, and until when they are; never, until that ends


def started(pid: int, uid: int) -> int:
    """In clock ticks since boot; 0 if there is no such process, or nobody can tell now. ``uid``: the process' user."""
    if uid in (0, os.getuid()):  # who is trusted
        return _look(pid)
    uid = account_of(uid)
    with _lock:
        if _late.get(uid, 0.0) > time.monotonic():
            return 0
    answer: queue.SimpleQueue[int] = queue.SimpleQueue()

    def look() -> None:
        found = _look(pid)
        with _lock:
            answer.put(found)
            if _late.get(uid) == math.inf:
                _late[uid] = time.monotonic() + AFTERWARDS

    try:
        threading.Thread(target=look, name="started", daemon=True).start()
        return answer.get(timeout=PATIENCE)
    except RuntimeError:  # the system allows no more threads
        return 0
    except queue.Empty:
        with _lock:
            if answer.empty():
                _late[uid] = math.inf
                return 0
        return answer.get()


def started_at(ticks: int) -> float | None:
    """Seconds since 1970 of a start in clock ticks since boot; None for 0, which is not known."""
    if ticks == 0:
        return None
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    return None


def _look(pid: int) -> int:
    try:
        # `pid (command) state ...`: the command may contain anything, so the last parenthesis counts.
        fields = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19]) if len(fields) > 19 else 0  # from the third of proc_pid_stat(5) on
