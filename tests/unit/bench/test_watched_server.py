"""The watch on an event loop: what it writes of a stall, and that only the loop's own thread looks at its frames."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STALLED = """
import asyncio, sys, time
from pathlib import Path
import uvloop
from bench import watched_server

stalls = Path(sys.argv[1])

def refused():
    raise SystemError("frames of another thread")

def busy():
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass

async def main():
    while not stalls.exists() or "busy" not in stalls.read_text():
        busy()
        await asyncio.sleep(0.02)

def watched():
    loop = uvloop.new_event_loop()
    watched_server.watch(loop, stalls)
    return loop

sys._current_frames = refused
with asyncio.Runner(loop_factory=watched) as runner:
    runner.run(main())
"""


def test_the_loops_own_thread_tells_where_it_was(tmp_path: Path) -> None:
    stalls = tmp_path / "stalls"
    subprocess.run([sys.executable, "-c", STALLED, stalls], check=True, timeout=60)
    told = [json.loads(line) for line in stalls.read_text().splitlines()]
    found = next(each for each in told if each["where"] and each["where"][-1].endswith(" busy"))
    assert found["where"][-2].endswith(" main")
    assert found["ms"] >= 4
