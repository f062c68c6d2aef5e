"""Trains for a moment and ends with work queued: no wait, no clean-up. With --rank as the one rank of a job.

python leave.py [--rank] [--seconds 0.1] [--device cuda]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    model: nn.Module = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(device)
    if options.rank:
        os.environ.setdefault("LOCAL_RANK", "0")
        store = Path(tempfile.mkdtemp(), "store")
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = DataLoader(
        TensorDataset(torch.randn(512, 1024)), batch_size=64, num_workers=2 if options.rank else 0, pin_memory=True
    )
    model(torch.randn(64, 1024, device=device)).sum().backward()  # loads what it needs
    end = time.monotonic() + options.seconds
    for (batch,) in rows:
        x = batch.to(device, non_blocking=True)
        for _ in range(20):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
