"""Trains a transformer of about 110 million parameters, as fast as it can, eagerly or as one CUDA graph a step.

    python train.py [--graph] [--seconds T] [--wait] [--file PATH] [--losses PATH] [--device cuda] [--tiny]

PATH of --losses gets the bits of each step's loss, so that two runs can be compared. Prints one line of JSON.
"""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path

import pace
import torch
import transformer
from torch.nn import functional

SHAPE = transformer.Shape(width=768, layers=12, heads=12, vocabulary=32_768, context=512, batch=16)
TINY = transformer.Shape(width=32, layers=2, heads=2, vocabulary=64, context=16, batch=2)
WARM_UP = 5  # steps before the start; with a graph they also make what must not be made within it
IN_FLIGHT = 2  # steps: enough to keep the device busy
DATA = 16  # batches, over and over
MOST_STEPS = 200_000


class Trainer:
    def __init__(self, shape: transformer.Shape, device: str, graph: bool) -> None:
        self.device = device
        self.model = transformer.make(shape, device, seed=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True, capturable=device == "cuda")
        self.data = transformer.token_batches(shape, DATA, seed=2).to(device)
        self.input = self.data[0].clone()
        self.losses = torch.zeros(MOST_STEPS, dtype=torch.float32, device=device)
        self.steps = 0
        self.graph = None
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            self.optimizer.zero_grad(set_to_none=True)  # so that the graph's backward writes gradients, not adds
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.compute()
        else:
            for _ in range(WARM_UP):
                self.step()

    def compute(self) -> torch.Tensor:
        logits = self.model(self.input[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), self.input[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self) -> None:
        self.input.copy_(self.data[self.steps % DATA])
        if self.graph:
            self.graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = self.compute()
        self.losses[self.steps].copy_(self.loss)
        self.steps += 1


class Done:
    """A point in the device's work, to wait for. On a CPU work is done when the call returns."""

    def __init__(self, device: str) -> None:
        self.event = torch.cuda.Event() if device == "cuda" else None
        if self.event:
            self.event.record()

    def wait(self) -> int:
        if self.event:
            self.event.synchronize()
        return time.monotonic_ns()


def main() -> None:
    parser = pace.parser(__doc__)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--losses", type=Path)
    o = parser.parse_args()
    trainer = Trainer(TINY if o.tiny else SHAPE, o.device, o.graph)
    Done(o.device).wait()
    start = pace.begin(o)
    end = start + int(o.seconds * 1e9)
    pending: deque[Done] = deque()
    rows: list[tuple[int, ...]] = []

    def complete() -> None:
        rows.append((pending.popleft().wait() - start, (len(rows) + 1) * 1_000_000_000))

    while time.monotonic_ns() < end and trainer.steps < MOST_STEPS:
        if len(pending) >= IN_FLIGHT:
            complete()
        trainer.step()
        pending.append(Done(o.device))
    while pending:
        complete()
    pace.write(o.file, rows)
    losses = trainer.losses[: trainer.steps].cpu()
    if o.losses:
        o.losses.write_text("".join(f"{bits & 0xFFFFFFFF:08x}\n" for bits in losses.view(torch.int32).tolist()))
    parameters = sum(p.numel() for p in trainer.model.parameters())
    result = {"steps": len(rows), "parameters": parameters, "last_loss": losses[-1].item()}
    if o.device == "cuda":  # bytes of PyTorch's cache, and of tensors between two steps
        result |= {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
