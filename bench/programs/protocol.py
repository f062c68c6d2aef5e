"""How these programs are started again and again, and what they say.

    python PROGRAM [--seconds 10] [--wait] [--device cuda] [--tiny] ...

A program that has made its model and warmed up says ``{"ready": ...}`` in one line. With --wait it then reads lines of
JSON from stdin, one for each window of work: ``{"start": ns of CLOCK_MONOTONIC, "seconds": length, ...}``, where other
members are parameters of the program; the end of stdin ends it. Without --wait it works for one window, at once.

In a window it does units of work one after another, from the same state each time, so that answers can be compared.
After the window come the units as lines ``{"t": ns since the start, "done": units so far, ...}`` and one last line
``{"end": true, "digests": [...]}``: checksums of answers, in the same order in every window, as far as it came.
Nothing is written within a window, so that the reader disturbs nobody.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Window:
    """One window of work. Times are nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, start: int, seconds: float, parameters: dict[str, Any]) -> None:
        self.start = start
        self.seconds = seconds
        self.end = start + int(seconds * 1e9)
        self.parameters = parameters
        self.units: list[dict[str, Any]] = []
        self.digests: list[str] = []
        self.done = 0.0

    def over(self) -> bool:
        return time.monotonic_ns() >= self.end

    def unit(self, amount: float = 1.0, *, at: int | None = None, **more: Any) -> None:
        """``amount`` units are complete, now or at ``at``."""
        self.done += amount
        self.units.append({"t": (time.monotonic_ns() if at is None else at) - self.start, "done": self.done, **more})

    def digest(self, answer: bytes) -> None:
        self.digests.append(f"{zlib.crc32(answer):08x}")


def parser(description: str | None) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=10, help="length of the window without --wait")
    p.add_argument("--wait", action="store_true", help="windows come from stdin")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--tiny", action="store_true", help="so small that a CPU can run it: checks the program only")
    return p


def windows(options: argparse.Namespace, **about: Any) -> Iterator[Window]:
    """The windows of work. A program that takes the next one has done the units of the last."""
    faulthandler.enable()  # one that crashes under gemlet says where
    say({"ready": True, **about})
    if not options.wait:
        yield from reported(Window(time.monotonic_ns(), options.seconds, {}))
        return
    for line in sys.stdin:
        order = json.loads(line)
        window = Window(int(order.pop("start")), float(order.pop("seconds")), order)
        time.sleep(max(0.0, (window.start - time.monotonic_ns()) / 1e9))
        yield from reported(window)


def reported(window: Window) -> Iterator[Window]:
    yield window
    sys.stdout.write("".join(json.dumps(unit) + "\n" for unit in window.units))
    say({"end": True, "digests": window.digests})


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
