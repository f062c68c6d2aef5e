"""Doubles of what torch and the driver need a GPU for; torch itself, on the CPU, is real."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from gemlet.serve.execution import batch_call
from gemlet.serve.execution.graphed import Graphed
from gemlet.serve.execution.torch_models import Loaded
from gemlet.serve.models.specification import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest


class Stream:
    """Counts how often it was waited for."""

    cuda_stream = 11

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Graph:
    """In place of torch.cuda.CUDAGraph. What is "captured" runs as well; a replay runs the model's work once more."""

    made: ClassVar[list[Graph]] = []
    wrong = False  # replays spoil the results
    refusals: ClassVar[list[str]] = []  # of the next captures, at their end

    def __init__(self) -> None:
        self.mode, self.thread, self.collecting, self.replays = "", 0, True, 0
        self.ended = False
        self.work: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.random: list[bool] = []
        Graph.made.append(self)

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self.mode, self.thread, self.collecting = capture_error_mode, threading.get_ident(), gc.isenabled()
        self.given_pool = pool
        Model.capturing = self

    def capture_end(self) -> None:
        self.ended, Model.capturing = True, None
        if Graph.refusals:
            raise RuntimeError(Graph.refusals.pop(0))

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def replay(self) -> None:
        self.replays += 1
        Generator.state += any(self.random)
        self.work_again()

    def work_again(self) -> None:
        for x, y in self.work:
            torch.add(2 * x, 1.0 if Graph.wrong else 0.0, out=y)


class Model:
    """y = 2 x. ``refuses``: messages of the next calls, by phase: "warm-up" or "capture"."""

    capturing: Graph | None = None

    def __init__(self, **refuses: list[str]) -> None:
        self.refuses = refuses
        self.threads: list[int] = []
        self.random = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.threads.append(threading.get_ident())
        waiting = self.refuses.get("capture" if Model.capturing else "warm-up")
        if waiting:
            raise RuntimeError(waiting.pop(0) + "\nand where")
        y = torch.rand_like(x) if self.random else 2 * x
        if Model.capturing:
            Model.capturing.work.append((x, y))
            Model.capturing.random.append(self.random)
        return y


class Generator:
    """In place of torch's generator of random numbers."""

    state = 0


class GraphWithHandle(Graph):
    """As of torch 2.8."""

    def raw_cuda_graph_exec(self) -> int:
        return 100 + Graph.made.index(self)


class Driver:
    """In place of libgembatch.so.1: does the same on the host. ``codes``: what the next calls return."""

    context = 7

    def __init__(self) -> None:
        self.calls: list[int] = []  # which graphs
        self.staged_before: list[list[bool]] = []
        self.codes: list[int] = []

    def run(self, address: int) -> int:
        batch = batch_call._Batch.from_address(address)
        assert (batch.context, batch.stream) == (7, Stream.cuda_stream)
        self.calls.append(batch.graph)
        self.staged_before.append([batch.inputs[n].source is None for n in range(batch.input_count)])
        for n in range(batch.input_count):
            given = batch.inputs[n]
            if given.source is not None:
                ctypes.memmove(given.staging, given.source, given.bytes)
            ctypes.memmove(given.device, given.staging, given.bytes)
        with torch.inference_mode():
            Graph.made[batch.graph - 100].work_again()
        for n in range(batch.output_count):
            taken = batch.outputs[n]
            ctypes.memmove(taken.host, taken.device, taken.bytes)
        if self.codes:
            batch.step, batch.place = batch_call.Step.OUTPUT, 0
            return self.codes.pop(0)
        return 0

    def message(self, code: int) -> str:
        return f"words of {code}"


@contextlib.contextmanager
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.cuda without CUDA: tensors lie on the host, graphs and streams are doubles, no driver is found."""
    real_zeros, real_empty = torch.zeros, torch.empty

    def anywhere(real: Any) -> Any:
        return lambda *shape, **more: real(*shape, **{k: v for k, v in more.items() if k == "dtype"})

    monkeypatch.setattr(torch, "zeros", anywhere(real_zeros))
    monkeypatch.setattr(torch, "empty", anywhere(real_empty))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_: tensor)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor([Generator.state]))
    monkeypatch.setattr(batch_call, "driver", lambda _: None)
    monkeypatch.setattr(Graph, "made", [])
    monkeypatch.setattr(Graph, "refusals", [])
    monkeypatch.setattr(Graph, "wrong", False)
    yield
    assert gc.isenabled()
    assert Model.capturing is None


def give_driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver, and graphs that tell their handle."""
    made = Driver()
    monkeypatch.setattr(batch_call, "driver", lambda _: made)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", GraphWithHandle)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return made


def graphed(
    model: Model, batches: Sequence[int] = (1, 2, 4), stream: Stream | None = None, datatype: str = "FP32"
) -> Graphed:
    spec = ModelSpec(
        name="m",
        directory="/m",
        platform="python",
        inputs=(TensorSpec("x", datatype, (3,)),),
        outputs=(TensorSpec("y", datatype, (3,)),),
        max_batch=8,
    )
    return Graphed(spec, Loaded(model), stream or Stream(), batches)  # type: ignore[arg-type]
