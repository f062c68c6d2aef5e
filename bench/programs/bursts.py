"""Bursts of work of about a millisecond with pauses between them, with CuPy. A unit is a burst.

python bursts.py [--pause-ms 4] ...        (protocol.py has the other options; on a CPU it is NumPy)
"""

from __future__ import annotations

import time
from typing import Any

import protocol

SIZE, PRODUCTS = 2048, 3  # of float32 matrices: about a millisecond on an H200


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--pause-ms", type=float, default=4.0)
    o = parser.parse_args()
    if o.device == "cpu":
        import numpy as xp
    else:
        import cupy as xp
    size = 256 if o.tiny else SIZE
    first: Any = xp.arange(size * size, dtype=xp.float32).reshape(size, size) / (size * size)
    for _ in range(3):
        burst(xp, first)
    for window in protocol.windows(o):
        while not window.over():
            answer = burst(xp, first)
            window.unit()
            if len(window.digests) < 64:
                window.digest(answer)
            time.sleep(o.pause_ms / 1000)


def burst(xp: Any, first: Any) -> bytes:
    x = first
    for _ in range(PRODUCTS):
        x = xp.tanh(x @ first)
    return float(x.sum()).hex().encode()  # waits


if __name__ == "__main__":
    main()
