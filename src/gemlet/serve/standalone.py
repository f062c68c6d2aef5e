"""`gemlet infer`: one model on one gpu-let, without a server: how long its batches take one after the other.

The executor is a server's, with the same way of a batch to it and back; nothing queues, and nothing is beside it.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gemlet.errors import GemletError, UsageError
from gemlet.load import inputs
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import Input
from gemlet.serve.execution.protocol import FailedRequest, RequestInfo
from gemlet.serve.models import built_in
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gemlet.serve.execution.executor import Executor
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.backend_choice import Choice

WARM_UP = 5  # batches that are not counted
GPU_LET = "gpu0/let0"


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. ``gap_s``: mean time between the starts of batches; 0: each after the other. share: of the SMs."""

    batch: int
    count: int
    gap_s: float = 0.0
    poisson: bool = False
    share: float = 1.0
    seed: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Batch(msgspec.Struct, frozen=True):
    """One: when it started, in seconds from the first; in the executor; with the way there and back."""

    at_s: float
    computed_ms: float
    total_ms: float


def find(name: str) -> ModelSpec:
    """A built-in model, or that of a model's directory, its highest version. Raises UsageError, ConfigError."""
    if name in built_in.BUILT_IN:
        return built_in.spec(name)
    from gemlet.serve.server.repository import tree  # noqa: PLC0415  built-in models need no YAML

    path = Path(name)
    if not path.is_dir():
        hint = f"name a model's directory, such as models/language, or one of {', '.join(built_in.BUILT_IN)}"
        raise UsageError(f"{name!r} is neither a built-in model nor a directory", hint=hint)
    return built_in.completed(tree.read_model(path)[-1])


async def run(spec: ModelSpec, choice: Choice, order: Order, *, profiles: str = "") -> list[Batch]:
    """The batches, without those of the warm-up. ``profiles``: JSON, for modelled time. Raises GemletError."""
    if order.batch > max(1, spec.max_batch):
        raise UsageError(f"--batch {order.batch}: {spec.name} takes at most {max(1, spec.max_batch)} rows")
    async with asyncio.TaskGroup() as tasks:
        outcome = await _outcome(
            spec, choice, BackendOptions(device=choice.devices[0], profiles=profiles), order, tasks
        )
    if isinstance(outcome, GemletError):  # as itself: a group of tasks would wrap it
        raise outcome
    return outcome


async def _outcome(
    spec: ModelSpec, choice: Choice, options: BackendOptions, order: Order, tasks: asyncio.TaskGroup
) -> list[Batch] | GemletError:
    device = Device(0, choice.backend, options, tasks, on_died=_gone, on_back=_gone)
    try:
        given = _inputs(spec, order)
        await device.start()
        gpu_let = GpuLet(name=GPU_LET, sm=order.share, models={spec.key: order.batch})
        await device.prepare({spec.key: spec}, [gpu_let])
        return await _batches(device.executor(GPU_LET), spec, given, order)
    except GemletError as error:
        return error
    finally:
        await device.close()


def starts(order: Order) -> Iterator[float]:
    """Seconds from the first batch at which each is due."""
    chance, at = random.Random(order.seed), 0.0
    for _ in range(order.count):
        yield at
        if order.gap_s:
            at += chance.expovariate(1 / order.gap_s) if order.poisson else order.gap_s


async def _batches(executor: Executor, spec: ModelSpec, given: Sequence[Input], order: Order) -> list[Batch]:
    for _ in range(WARM_UP):
        await _one(executor, spec, given, order.batch)
    done: list[Batch] = []
    began = time.perf_counter()
    for due in starts(order):
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        start = time.perf_counter()
        computed = await _one(executor, spec, given, order.batch)
        done.append(Batch(start - began, computed, 1000 * (time.perf_counter() - start)))
    return done


async def _one(executor: Executor, spec: ModelSpec, given: Sequence[Input], rows: int) -> float:
    """Milliseconds in the executor. Raises ModelError, ExecutorDied."""
    requests = (RequestInfo(rows),) if spec.by_request else ()
    result = await executor.run(GPU_LET, spec.key, given, rows, requests)
    for answer in result.answers or ():
        if isinstance(answer, FailedRequest):
            raise ModelError(f"{spec.name}: {answer.message}")
    return result.ms


def _inputs(spec: ModelSpec, order: Order) -> list[Input]:
    """Random ones. Raises InvalidValue."""
    declared = [
        inputs.Declared(each.name, each.datatype, (-1, *each.shape) if spec.max_batch else each.shape)
        for each in spec.inputs
    ]
    made = inputs.make(declared, order.batch, order.shapes, np.random.default_rng(order.seed))
    return [Input(each.name, each.datatype, each.shape, [each.data], len(each.data)) for each in made]


def _gone(*_executors: object) -> None:
    """Its batch says so."""
