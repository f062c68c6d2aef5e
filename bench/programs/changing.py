"""Turns from work that waits for its host to work that saturates the device, and back. A unit is a step.

    python changing.py [--period 5] ...        (protocol.py has the other options)

The phase that is bound by its host comes first: a small network, whose answer the host waits for before the next step,
which begins PACE after the last one. Without that the host of a shared machine does 1500 to 3200 steps a second, from
one half second to the next, also while nobody else uses the device.
The other keeps sums of long vectors queued. Matrix products draw so much power that the device lowers its clock: they
are slower alone than beside others, and slow those down. Each unit has ``phase``: 0 bound by the host, 1 saturating.
"""

from __future__ import annotations

import time
from collections import deque

import protocol
import torch
from torch import nn

SIZE = 1 << 26  # values of bf16: an addition in place of that many takes about 0.1 ms on an H200
SUMS = 10  # a step
IN_FLIGHT = 4
PACE = 800_000  # ns


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--period", type=float, default=5.0, metavar="SECONDS")
    o = parser.parse_args()
    torch.manual_seed(13)
    data = torch.zeros(1 << 10 if o.tiny else SIZE, device=o.device, dtype=torch.bfloat16)
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
    network = nn.Sequential(*layers).to(o.device).eval()
    x = torch.randn(8, 256, device=o.device)
    with torch.inference_mode():
        for _ in range(5):
            network(x).sum().item()
            data.add_(1)
        for window in protocol.windows(o):
            period = float(window.parameters.get("period", o.period)) * 1e9
            while not window.over():
                turn = int((time.monotonic_ns() - window.start) / period)
                phase = turn % 2
                until = window.start + int((turn + 1) * period)
                if phase == 0:
                    think(network, x, min(until, window.end), window)
                else:
                    saturate(data, min(until, window.end), window)


def think(network: nn.Module, x: torch.Tensor, until: int, window: protocol.Window) -> None:
    while (begun := time.monotonic_ns()) < until:
        answer = network(x).sum().item()  # waits
        while time.monotonic_ns() < begun + PACE:
            pass  # the program works on its host
        window.unit(phase=0)
        if len(window.digests) < 64:
            window.digest(answer.hex().encode())


def saturate(data: torch.Tensor, until: int, window: protocol.Window) -> None:
    pending: deque[torch.cuda.Event | None] = deque()
    while time.monotonic_ns() < until:
        for _ in range(SUMS):
            data.add_(1)
        event = None
        if data.is_cuda:
            event = torch.cuda.Event()
            event.record()
        pending.append(event)
        if len(pending) >= IN_FLIGHT:
            wait(pending, window)
    while pending:
        wait(pending, window)


def wait(pending: deque[torch.cuda.Event | None], window: protocol.Window) -> None:
    event = pending.popleft()
    if event is not None:
        event.synchronize()
    window.unit(phase=1)


if __name__ == "__main__":
    main()
