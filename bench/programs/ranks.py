"""One rank of a job on several devices, as torchrun starts them. A unit is a step; rank 0 reports, others follow it.

    torchrun --nproc-per-node 2 ranks.py KIND [--large] [--graph] ...       (protocol.py has the other options)

ddp       trains a language model by DistributedDataParallel; --large keeps the devices busy without a pause
fsdp      the same by fully_shard
tensor    generates text with each layer split over the ranks: two all-reduces a layer; --graph captures them
reduce    all-reduces of 64 KiB, 1000 a unit, with a checksum of each thousand: how many are done is all that it shows

Ranks end a window at the same step: rank 0 says which one in shared memory when the time is over.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import llama
import protocol
import torch
import torch.distributed as dist
import train
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

AHEAD = 8  # steps until all end: more than ranks can be apart
BATCH, LENGTH, LARGE_LENGTH = 8, 128, 512
TOKENS, CONTEXT = 16, 384  # of generation: sequences, longest
REDUCE = 32 * 1024  # bf16 values
BURST = 64  # units, of one that pauses
NOT_YET = 1 << 62


class Steps(Protocol):
    """``wait`` returns when the device has come to the end of the oldest step that is not waited for yet."""

    in_flight: int

    def reset(self) -> None: ...
    def step(self) -> None: ...
    def wait(self) -> bytes: ...


class Training:
    """The trainer of train.py, each rank with tokens of its own."""

    in_flight = train.IN_FLIGHT

    def __init__(self, o: argparse.Namespace, device: torch.device) -> None:
        model: nn.Module = llama.make(llama.TINY if o.tiny else llama.MEDIUM, str(device), seed=7)
        if o.kind == "ddp":
            ids = [device.index] if device.type == "cuda" else None
            model = nn.parallel.DistributedDataParallel(model, device_ids=ids)
        else:
            from torch.distributed.fsdp import fully_shard

            for layer in model.model.layers:  # type: ignore[union-attr]
                fully_shard(layer)
            model = fully_shard(model)
        batch, length = (2, 16) if o.tiny else (BATCH, LARGE_LENGTH if o.large else LENGTH)
        self.trainer = train.Trainer(model, batch, length, str(device))
        first = train.DATA * dist.get_rank()
        self.trainer.data = [
            llama.tokens(batch, length, seed=first + seed, device=str(device)) for seed in range(train.DATA)
        ]
        self.trainer.steps = 0
        self.pending: deque[train.Done] = deque()

    def reset(self) -> None:
        self.trainer.reset()

    def step(self) -> None:
        self.pending.append(train.Done(self.trainer.step()))

    def wait(self) -> bytes:
        done = self.pending.popleft()
        done.wait()
        return done.loss.float().cpu().numpy().tobytes()


class Layer(nn.Module):
    """A decoder's layer of which this rank has its part of the heads and of the inner width."""

    def __init__(self, width: int, inner: int, heads: int, ranks: int) -> None:
        super().__init__()
        self.heads, self.size = heads // ranks, width // heads
        part = self.heads * self.size
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * part, bias=False), nn.Linear(part, width, bias=False)
        self.up, self.down = nn.Linear(width, inner // ranks, bias=False), nn.Linear(inner // ranks, width, bias=False)
        self.register_buffer("cache", torch.zeros(2, TOKENS, self.heads, CONTEXT, self.size))

    def forward(self, x: torch.Tensor, at: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], 3, self.heads, 1, self.size).unbind(1)
        self.cache[0].index_copy_(2, at, k)
        self.cache[1].index_copy_(2, at, v)
        seen = functional.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask)
        y = self.out(seen.reshape(x.shape[0], -1))
        dist.all_reduce(y)
        x = x + y
        z = self.down(functional.silu(self.up(self.norm2(x))))
        dist.all_reduce(z)
        return x + z


class Tensor:
    """Every rank chooses the same next tokens, and waits for them, as a server does that sends them on."""

    in_flight = 0

    def __init__(self, o: argparse.Namespace, device: torch.device) -> None:
        ranks = dist.get_world_size()
        width, inner, layers, heads = (64, 128, 2, 4) if o.tiny else (2048, 5632, 22, 32)
        torch.manual_seed(3)  # embeddings are the same on all ranks
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.embedding = nn.Embedding(llama.VOCABULARY, width).to(device, kind)
        torch.manual_seed(5 + dist.get_rank())
        self.layers = nn.ModuleList(Layer(width, inner, heads, ranks) for _ in range(layers)).to(device, kind)
        self.tokens = torch.zeros(TOKENS, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.positions = torch.arange(CONTEXT, device=device)
        self.answer = torch.zeros(TOKENS, 16, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if o.graph and device.type == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(side):
                for _ in range(3):
                    self.compute()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.compute()

    def compute(self) -> None:
        mask = (self.positions <= self.at).view(1, 1, 1, CONTEXT)
        x = self.embedding(self.tokens)
        for layer in self.layers:
            x = layer(x, self.at, mask)
        self.answer.copy_(x[:, :16])
        self.tokens.copy_((x @ self.embedding.weight.T).argmax(-1))
        self.at.copy_((self.at + 1) % CONTEXT)

    def reset(self) -> None:
        self.tokens.zero_()
        self.at.zero_()

    def step(self) -> None:
        with torch.no_grad():
            if self.graph:
                self.graph.replay()
            else:
                self.compute()

    def wait(self) -> bytes:
        return self.tokens.cpu().numpy().tobytes() + self.answer.cpu().numpy().tobytes()


class Reduce:
    in_flight = 0

    def __init__(self, o: argparse.Namespace, device: torch.device) -> None:
        self.count = 10 if o.tiny else 1000
        generator = torch.Generator().manual_seed(11 + dist.get_rank())
        self.initial = torch.randn(REDUCE, generator=generator).to(device)
        self.values = self.initial.clone()

    def reset(self) -> None:
        self.values.copy_(self.initial)

    def step(self) -> None:
        for _ in range(self.count):
            dist.all_reduce(self.values)
            self.values.mul_(0.5)
            self.values.add_(self.initial, alpha=1e-3)

    def wait(self) -> bytes:
        return self.values.cpu().numpy().tobytes()


class Stop:
    """The step after which all ranks end the window, in memory that they share."""

    def __init__(self, path: Path, *, make: bool) -> None:
        if make:
            path.write_bytes(struct.pack("q", NOT_YET))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def step(self) -> int:
        return int(struct.unpack("q", self._memory[:8])[0])

    @step.setter
    def step(self, value: int) -> None:
        self._memory[:8] = struct.pack("q", value)


def windows(o: argparse.Namespace, store: dist.Store, rank: int) -> Iterator[protocol.Window]:
    """The windows of rank 0's input, for every rank; those of other ranks say nothing."""
    number = 0
    if rank == 0:
        for window in protocol.windows(o, ranks=dist.get_world_size()):
            store.set(f"window-{number}", json.dumps({"start": window.start, "seconds": window.seconds}))
            yield window
            number += 1
        store.set(f"window-{number}", "{}")
        return
    while order := _order(store, f"window-{number}"):
        yield protocol.Window(int(order["start"]), float(order["seconds"]), {})
        number += 1


def _order(store: dist.Store, key: str) -> dict[str, Any]:
    while not store.check([key]):
        time.sleep(0.002)
    found: dict[str, Any] = json.loads(store.get(key))
    return found


def work(job: Steps, window: protocol.Window, stop: Stop, rank: int, most: float, busy: float) -> None:
    job.reset()
    steps = waited = 0

    burst, since = 0, time.monotonic()

    def wait() -> None:
        nonlocal waited, burst, since
        answer = job.wait()
        waited += 1
        window.unit(phase=burst)
        window.digest(answer)
        if busy < 1 and waited % BURST == 0:
            burst += 1
            time.sleep((time.monotonic() - since) * (1 - busy) / busy)
            since = time.monotonic()

    while steps < stop.step:
        if rank == 0 and stop.step == NOT_YET and (window.over() or steps >= most):
            stop.step = steps + AHEAD
        job.step()
        steps += 1
        if steps - waited > job.in_flight:
            wait()
    while waited < steps:
        wait()


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("kind", choices=["ddp", "fsdp", "tensor", "reduce"])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--most", type=float, default=float("inf"), help="units after which a window ends")
    parser.add_argument(
        "--busy", type=float, default=1.0, help="part of the time; pauses come between bursts of 64 units"
    )
    o = parser.parse_args()
    cuda = o.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=60), device_id=device if cuda else None
    )
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    job: Steps = {"tensor": Tensor, "reduce": Reduce}.get(o.kind, Training)(o, device)
    for _ in range(train.WARM_UP):
        job.step()
        job.wait()
    path = Path("/dev/shm") / f"gemlet-ranks-{os.environ['MASTER_PORT']}-{os.getppid()}"
    stop = Stop(path, make=True) if rank == 0 else None
    dist.barrier()
    stop = stop or Stop(path, make=False)
    dist.barrier()
    if rank == 0:
        path.unlink()
    for window in windows(o, store, rank):
        dist.barrier()
        if rank == 0:
            stop.step = NOT_YET
        dist.barrier()
        work(job, window, stop, rank, o.most, o.busy)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
