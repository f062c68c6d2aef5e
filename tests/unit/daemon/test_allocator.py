"""Memory of large answers goes back."""

from __future__ import annotations

import os
import subprocess
import sys

MANY = """
import re
from pathlib import Path
from gemlet.daemon.allocator import return_large_blocks
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
return_large_blocks()
b"x" * (16 << 20)  # without that, blocks of up to this size would come from the heap from now on
before, kept = resident(), []
for _ in range(100):
    large = [b"x" * (1 << 20) for _ in range(2)]
    kept.append((large, b"y" * 5000))
held = resident() - before
kept = [small for _, small in kept]
del large
print(held, resident() - before)
"""


def test_large_blocks_below_small_ones_go_back() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # a sanitizer's allocator
    done = subprocess.run([sys.executable, "-c", MANY], env=environment, capture_output=True, text=True, check=True)
    held, left = map(int, done.stdout.split())
    assert held >= 200
    assert left < 20
