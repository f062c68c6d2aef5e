"""What the GPU backends share: gpu-lets as streams with CUDA graphs of their models.

A *seat* is a stream and what is captured on it. A partition gives each gpu-let a seat; a seat that was used before
still has its graphs, so going back to it costs nothing. partition() prepares what is missing while the old gpu-lets
go on, then replaces one dictionary: that is the switch. Weights are there once, whatever the number of gpu-lets.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from gemlet.errors import DeviceError
from gemlet.serve.execution import torch_models
from gemlet.serve.execution.backend import LetGone
from gemlet.serve.execution.fair_lock import FairLock
from gemlet.serve.execution.graphed import Graphed
from gemlet.serve.execution.ladder import ladder
from gemlet.serve.models.built_in import completed
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.backend import BackendOptions, LetSpec
    from gemlet.serve.execution.torch_models import Loaded
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
SPARE = 0.1  # of the device's memory: below it, graphs that no gpu-let uses are dropped
# Hardware queues of a process. With the default of 8, streams share them, and one gpu-let's launch waits for another's.
CONNECTIONS = "32"


class Seat:
    """A stream, and the models that run on it. ``lock``: an old and a new gpu-let may both have it.

    Models are captured on that stream, too, unless a gpu-let of now has the seat: then on another one of the same SMs,
    so that it need not wait. That must be a stream that no other model here was captured on: cuBLAS has a workspace for
    each stream, which graphs go on using, and the model runs a few times before it is captured.
    """

    def __init__(self, key: Hashable, stream: torch.cuda.Stream) -> None:
        self.key, self.stream = key, stream
        self.models: dict[str, Graphed] = {}
        self.lock = FairLock()
        self.used = 0.0
        self._others: list[torch.cuda.Stream] = []

    def other_stream(self, make: Callable[[], torch.cuda.Stream]) -> torch.cuda.Stream:
        """One for capturing while the seat is in use; a new one if all are taken."""
        taken = [made.captured_on for made in self.models.values()]
        for stream in self._others:
            if not any(stream is other for other in taken):
                return stream
        self._others.append(make())
        return self._others[-1]

    def put(self, model: str, made: Graphed) -> None:
        """In place of what the model had. The caller has the lock."""
        before = self.models.get(model)
        self.models[model] = made
        if before is not None:
            before.close()

    def drop(self, model: str) -> None:
        """Once nothing of it runs any more: torch.cuda.synchronize() would not wait for a green context's stream."""
        with self.lock:
            gone = self.models.pop(model, None)
            if gone is not None:
                gone.close()


class TorchLets(ABC):
    """A Backend but for where its seats come from: `seats_for` of a subclass."""

    name = "torch"
    note = ""
    groups = 0  # of SMs that shares are made of; 0 where they are made of nothing whole
    connections = CONNECTIONS

    def __init__(self, options: BackendOptions) -> None:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", self.connections)
        if not torch.cuda.is_available():
            raise DeviceError("torch sees no GPU here", hint="--executor cpu and --executor modelled need none")
        torch.cuda.set_device(options.device)
        torch.set_num_threads(1)  # each gpu-let has a thread already
        self.device = options.device
        self.prepared_ms = self.switched_ms = 0.0  # of the last partition
        self._models: dict[str, tuple[ModelSpec, Loaded]] = {}
        self._seats: dict[Hashable, Seat] = {}
        self._lets: dict[str, Seat] = {}
        self._eager: set[str] = set()

    @abstractmethod
    def seats_for(self, lets: Sequence[LetSpec]) -> dict[str, Seat]:
        """A seat for each gpu-let."""

    def another_stream(self, seat: Seat) -> torch.cuda.Stream:
        """A new one on the SMs of the seat."""
        return torch.cuda.Stream()

    def seat(self, key: Hashable, stream: torch.cuda.Stream) -> Seat:
        return self._seats.setdefault(key, Seat(key, stream))

    @property
    def loaded(self) -> frozenset[str]:
        """The models that are."""
        return frozenset(self._models)

    def load(self, model: ModelSpec) -> int:
        model = completed(model)
        torch.cuda.set_device(self.device)
        before = torch.cuda.memory_allocated()
        try:
            loaded = torch_models.load(model)
        except torch.cuda.OutOfMemoryError as error:
            raise ModelError(f"{model.name}: its weights do not fit into the device's memory") from error
        torch.cuda.current_stream().synchronize()
        self._models[model.name] = (model, loaded)
        return int(torch.cuda.memory_allocated() - before)

    def unload(self, model: str) -> None:
        for seat in self._seats.values():
            seat.drop(model)
        self._models.pop(model, None)

    def partition(self, lets: Sequence[LetSpec]) -> None:
        torch.cuda.set_device(self.device)
        begin = time.perf_counter()
        seats = self.seats_for(lets)
        now = set(map(id, self._lets.values()))
        for let in lets:
            for model, batch in let.models.items():
                seat = seats[let.name]
                self._prepare(seat, model, batch, in_use=id(seat) in now)
        switch = time.perf_counter()
        self._lets = seats
        end = time.perf_counter()
        self.prepared_ms, self.switched_ms = 1000 * (switch - begin), 1000 * (end - switch)
        logger.info(
            "%d gpu-lets: prepared in %.1f ms, switched in %.3f ms", len(lets), self.prepared_ms, self.switched_ms
        )
        self._make_room()

    def run(self, let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        seat = self._lets.get(let)
        if seat is None:
            raise LetGone(f"{let} is not there")
        with seat.lock:
            graphed = seat.models.get(model)
            if graphed is None:
                raise LetGone(f"{let} does not serve {model}")
            return graphed.run(inputs, batch)

    def close(self) -> None:
        self._lets = {}
        for seat in self._seats.values():
            for model in list(seat.models):
                seat.drop(model)
        torch.cuda.synchronize()
        self._seats.clear()
        self._models.clear()

    def _prepare(self, seat: Seat, model: str, batch: int, *, in_use: bool) -> None:
        if model not in self._models:
            raise ModelError(f"{model} is not loaded")
        seat.used = time.monotonic()
        spec, loaded = self._models[model]
        there = seat.models.get(model)
        if there is not None and there.loaded is loaded and there.largest >= batch:
            return  # else it is another version of the model, or its batches are too small
        sizes = ladder(max(1, batch))
        if in_use:
            other = seat.other_stream(lambda: self.another_stream(seat))
            made = Graphed(spec, loaded, seat.stream, sizes, captured_on=other)
            with seat.lock:
                seat.put(model, made)
        else:
            with seat.lock:  # whoever had it before may still be at its last batch
                seat.stream.synchronize()
                made = Graphed(spec, loaded, seat.stream, sizes)
                seat.put(model, made)
        self._report(seat, model, made)

    def _report(self, seat: Seat, model: str, made: Graphed) -> None:
        if made.why_eager and model not in self._eager:
            logger.warning("%s runs without CUDA graphs on %s: %s", model, seat.key, made.why_eager)
            if made.loaded.module is None or not made.missing:
                self._eager.add(model)  # it always will; a capture that failed is news each time
        for size, why in made.missing.items() if made.why_eager is None else ():
            logger.warning("%s on %s has no CUDA graph for batches of %d: %s", model, seat.key, size, why)

    @property
    def slower(self) -> list[str]:
        """What runs without CUDA graphs that should have them, a line each."""
        lines = []
        for let, seat in self._lets.items():
            for model, made in seat.models.items():
                if made.why_eager and made.missing:
                    lines.append(f"{model} on {let}: no CUDA graphs: {made.why_eager}")
                else:
                    lines += [f"{model} on {let}: no CUDA graph of {n}: {why}" for n, why in made.missing.items()]
        return lines

    def graphs(self) -> list[dict[str, object]]:
        """How each model of each gpu-let runs: let, model, batches with a graph, those without, and why."""
        return [
            {
                "let": let,
                "model": model,
                "batches": [] if made.why_eager else list(made.batches),
                "missing": {str(size): why for size, why in made.missing.items()},
                "retried": made.retried,
                "why_eager": made.why_eager,
            }
            for let, seat in self._lets.items()
            for model, made in seat.models.items()
        ]

    def _make_room(self) -> None:
        """Drops graphs that nobody uses, those unused for longest first, while the device's memory is short."""
        used = set(map(id, self._lets.values()))
        idle = sorted((s for s in self._seats.values() if id(s) not in used and s.models), key=lambda s: s.used)
        for seat in idle:
            free, total = torch.cuda.mem_get_info()
            if free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > SPARE * total:
                return
            for model in list(seat.models):
                seat.drop(model)
