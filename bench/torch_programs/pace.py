"""Options, start and log of these programs: the same as those of bench/client (its client.cpp describes them)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--wait", action="store_true")
    p.add_argument("--file", type=Path)
    p.add_argument("--device", default="cuda")
    p.add_argument(
        "--tiny", action="store_true", help="a model so small that a CPU can run it: checks the program only"
    )
    return p


def begin(options: argparse.Namespace) -> int:
    """The time of the start, in ns of CLOCK_MONOTONIC, when it has come."""
    if not options.wait:
        return time.monotonic_ns()
    print("ready", flush=True)
    start = int(sys.stdin.readline())
    time.sleep(max(0.0, (start - time.monotonic_ns()) / 1e9))
    return start


def write(path: Path | None, rows: list[tuple[int, ...]]) -> None:
    if path:
        path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
