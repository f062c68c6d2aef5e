"""A notebook: its user thinks for seconds, then runs a cell that computes for a part of one. A unit is a cell.

    python notebook.py [--think-s 2 5] ...        (protocol.py has the other options)

Each unit has ``cell_ms``, the time from the start of the cell to its end, and ``products``, what it computed.
"""

from __future__ import annotations

import random
import time

import protocol
import torch

SIZE = 8192
PRODUCTS = (150, 700)  # of bf16 matrices of that size, 1.4 ms each on an H200: 0.2 to 1 s


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--think-s", type=float, nargs=2, default=[2.0, 5.0], metavar=("LEAST", "MOST"))
    o = parser.parse_args()
    torch.manual_seed(11)
    size = 128 if o.tiny else SIZE
    data = torch.randn(size, size, device=o.device).to(torch.bfloat16)
    cell(data, 3)
    for window in protocol.windows(o):
        user = random.Random(int(window.parameters.get("seed", 1)))
        think_until = window.start + int(user.uniform(0.0, o.think_s[0]) * 1e9)
        while think_until < window.end:
            time.sleep(max(0.0, (think_until - time.monotonic_ns()) / 1e9))
            products = user.randint(*PRODUCTS)
            begin = time.monotonic_ns()
            answer = cell(data, products)
            now = time.monotonic_ns()
            window.unit(cell_ms=round((now - begin) / 1e6, 3), products=products)
            window.digest(answer)
            think_until = now + int(user.uniform(*o.think_s) * 1e9)


def cell(data: torch.Tensor, products: int) -> bytes:
    first = y = torch.matmul(data, data)
    for _ in range(products - 1):
        y = torch.matmul(data, data)
    answer = first.float().sum() + 0 * y[0, 0].float()
    return float(answer).hex().encode()  # waits


if __name__ == "__main__":
    main()
