"""Answers requests with a transformer, one at a time, as they come: Poisson arrivals, latency from arrival to answer.

    python infer.py [--rate 20] [--seed 1] [--seconds T] [--wait] [--file PATH] [--device cuda] [--tiny]

Each answer is compared with the first to the same input, bit by bit. Prints one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import random
import time

import pace
import torch
import transformer

SHAPE = transformer.Shape(width=1024, layers=8, heads=16, vocabulary=8192, context=128, batch=8)
TINY = transformer.Shape(width=32, layers=2, heads=2, vocabulary=64, context=16, batch=2)
INPUTS = 16  # over and over


class Server:
    def __init__(self, shape: transformer.Shape, device: str) -> None:
        self.model = transformer.make(shape, device, seed=3).eval()
        batches = transformer.token_batches(shape, INPUTS, seed=4)[:, :, :-1].contiguous()
        self.inputs = batches.pin_memory() if device == "cuda" else batches
        self.device = device

    def answer(self, number: int) -> bytes:
        """The logits of the last tokens, on the host."""
        with torch.inference_mode():
            tokens = self.inputs[number % INPUTS].to(self.device, non_blocking=True)
            logits = self.model(tokens)[:, -1].contiguous()
            return logits.view(torch.int16).cpu().numpy().tobytes()  # waits


def main() -> None:
    parser = pace.parser(__doc__)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    server = Server(TINY if o.tiny else SHAPE, o.device)
    for number in range(INPUTS):
        server.answer(number)  # warm-up: libraries choose and load their kernels
    expected = [server.answer(number) for number in range(INPUTS)]
    arrivals = random.Random(o.seed)
    rows: list[tuple[int, ...]] = []
    served = different = 0
    start = pace.begin(o)
    end = start + int(o.seconds * 1e9)
    arrival = float(start)
    while (arrival := arrival + arrivals.expovariate(o.rate) * 1e9) < end:
        time.sleep(max(0.0, (arrival - time.monotonic_ns()) / 1e9))
        answer = None
        if time.monotonic_ns() < end:
            answer = server.answer(len(rows))
            served += 1
        now = time.monotonic_ns()  # a request that was never served counts with its wait so far
        if answer is not None and answer != expected[len(rows) % INPUTS]:
            different += 1
        rows.append((now - start, served * 1_000_000_000, int(now - arrival)))
    pace.write(o.file, rows)
    digest = hashlib.sha256(b"".join(expected)).hexdigest()
    unserved = len(rows) - served
    print(json.dumps({"requests": len(rows), "unserved": unserved, "digest": digest, "different": different}))


if __name__ == "__main__":
    main()
