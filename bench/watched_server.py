"""The `gemlet` command with a watch on its event loop: `python -m bench.watched_server STALLS serve ...`.

Writes a line of JSON to the file STALLS for each time that the loop did not come around for LEAST_MS: when that began
(time.monotonic()), how long it took, how much of that the loop's own thread computed, and where it was, or just after.
A thread that holds the interpreter's lock, or others who use the processor, make it longer than what was computed.

The loop's thread itself tells where it is, when a signal asks it: a walk of another thread's frames may meet one that
is gone, and ends CPython 3.11 with a segmentation fault.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from types import FrameType

LEAST_MS = 4.0
BETWEEN_S = 0.002
ASK = signal.SIGPROF
OWN = "/gemlet/"
DEPTH = 5  # innermost frames that are told


def watch(loop: Any, stalls: Path) -> None:
    """To be called in the main thread, before the loop runs there."""
    main = threading.get_ident()
    clock = time.pthread_getcpuclockid(main)

    beats: list[tuple[float, float]] = []  # one, when the loop has come around
    came = threading.Event()
    told: list[list[str]] = []

    def tell(_number: int, frame: FrameType | None) -> None:
        told.append(_where(frame))

    signal.signal(ASK, tell)
    signal.siginterrupt(ASK, False)

    def beat() -> None:
        beats.append((time.monotonic(), time.thread_time()))
        came.set()

    def look() -> None:
        with stalls.open("a", buffering=1) as file:
            while True:
                came.clear()
                beats.clear()
                told.clear()
                began, computed = time.monotonic(), time.clock_gettime(clock)
                try:
                    loop.call_soon_threadsafe(beat)
                except RuntimeError:  # the loop has ended
                    return
                if not came.wait(LEAST_MS / 1000):
                    signal.pthread_kill(main, ASK)
                    came.wait()
                ms, cpu_ms = (1000 * (then - now) for then, now in zip(beats[0], (began, computed), strict=True))
                if ms >= LEAST_MS:
                    where = told[-1] if told else []
                    file.write(json.dumps({"at": began, "ms": ms, "cpu_ms": cpu_ms, "where": where}) + "\n")
                time.sleep(BETWEEN_S)

    threading.Thread(target=look, daemon=True).start()


def _where(frame: FrameType | None) -> list[str]:
    """Without the text of the lines: files would be read for that, in the loop's thread."""
    innermost = islice(walk_stack(frame), DEPTH) if frame is not None else ()
    found = [f"{each.f_code.co_filename.rpartition(OWN)[2]}:{line} {each.f_code.co_name}" for each, line in innermost]
    return found[::-1]


def main() -> None:
    stalls = Path(sys.argv.pop(1))
    made = uvloop.new_event_loop

    def watched() -> Any:
        loop = made()
        watch(loop, stalls)
        return loop

    uvloop.new_event_loop = watched
    from gemlet import __main__  # which reads the arguments that are left

    __main__.main()


if __name__ == "__main__":
    main()
