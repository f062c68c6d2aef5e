"""What the GPU backends share: gpu-lets as streams with CUDA graphs of their models.

A *captured stream* is a stream with the graphs captured on it. A partition gives each gpu-let one. One that was used
before still has its graphs, so going back to it costs nothing. partition() prepares what is missing while the old
gpu-lets go on, then replaces one dictionary: that is the switch. Weights are there once, whatever the number of
gpu-lets.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gemlet.errors import DeviceError
from gemlet.serve.execution import torch_models
from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.fair_lock import FairLock
from gemlet.serve.execution.graphed import Graphed
from gemlet.serve.execution.warm_up import warm_up
from gemlet.serve.models.built_in import completed
from gemlet.serve.models.specification import ModelError
from gemlet.serve.profiles.ladder import ladder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.backend import BackendOptions, GpuLet
    from gemlet.serve.execution.torch_models import Loaded
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
SPARE = 0.1  # of the device's memory: below it, graphs that no gpu-let uses are dropped
# Hardware queues of a process. With the default of 8, streams share them, and one gpu-let's launch waits for another's.
CONNECTIONS = "32"


class CapturedStream:
    """A stream, and the models that run on it. ``lock``: an old and a new gpu-let may both have it.

    Models are captured on that stream, too, unless a present gpu-let uses it: then on another stream of the same SMs,
    so that the capture need not wait. That must be a stream that no other model here was captured on: cuBLAS has a
    workspace for each stream, which graphs go on using, and the model runs a few times before it is captured.
    """

    def __init__(self, key: Hashable, stream: torch.cuda.Stream) -> None:
        self.key, self.stream = key, stream
        self.models: dict[str, Graphed] = {}
        self.lock = FairLock()
        self.used = 0.0
        self._others: list[torch.cuda.Stream] = []

    def other_stream(self, make: Callable[[], torch.cuda.Stream]) -> torch.cuda.Stream:
        """One for capturing while this one is in use; a new one if all are taken."""
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


class TorchGpuLets(ABC):
    """A Backend but for where its streams come from: `captured_streams_for` of a subclass."""

    name = "torch"
    note = ""
    groups = 0  # of SMs that shares are made of; 0 where they are made of nothing whole
    connections = CONNECTIONS

    def __init__(self, options: BackendOptions) -> None:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", self.connections)
        if not torch.cuda.is_available():
            raise DeviceError(
                "torch sees no GPU here", hint="use --executor cpu or --executor modelled, which need none"
            )
        torch.cuda.set_device(options.device)
        torch.set_num_threads(1)  # each gpu-let has a thread already
        self.device = options.device
        self.prepared_ms = self.switched_ms = 0.0  # of the last partition
        self._models: dict[str, tuple[ModelSpec, Loaded]] = {}
        self._captured_streams: dict[Hashable, CapturedStream] = {}
        self._gpu_lets: dict[str, CapturedStream] = {}
        self._eager: set[str] = set()

    @abstractmethod
    def captured_streams_for(self, gpu_lets: Sequence[GpuLet]) -> dict[str, CapturedStream]:
        """A captured stream for each gpu-let."""

    def another_stream(self, captured: CapturedStream) -> torch.cuda.Stream:
        """A new one on the same SMs."""
        return torch.cuda.Stream()

    def captured_stream(self, key: Hashable, stream: torch.cuda.Stream) -> CapturedStream:
        return self._captured_streams.setdefault(key, CapturedStream(key, stream))

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
        infer = loaded.infer
        if infer is not None:  # others are warm once their graphs are captured
            warm_up(model, lambda inputs, _rows: infer(inputs))
        self._models[model.key] = (model, loaded)
        return int(torch.cuda.memory_allocated() - before)

    def unload(self, model: str) -> None:
        for captured in self._captured_streams.values():
            captured.drop(model)
        self._models.pop(model, None)

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        torch.cuda.set_device(self.device)
        begin = time.perf_counter()
        captured_streams = self.captured_streams_for(gpu_lets)
        now = set(map(id, self._gpu_lets.values()))
        for gpu_let in gpu_lets:
            for model, batch in gpu_let.models.items():
                captured = captured_streams[gpu_let.name]
                self._prepare(captured, model, batch, in_use=id(captured) in now)
        switch = time.perf_counter()
        self._gpu_lets = captured_streams
        end = time.perf_counter()
        self.prepared_ms, self.switched_ms = 1000 * (switch - begin), 1000 * (end - switch)
        logger.info(
            "%d gpu-lets: prepared in %.1f ms, switched in %.3f ms", len(gpu_lets), self.prepared_ms, self.switched_ms
        )
        self._make_room()

    @contextmanager
    def around(self, gpu_let: str) -> Iterator[None]:
        """Where code of the host runs for a gpu-let: what it does on the device goes to that one's SMs.

        Raises GpuLetGone.
        """
        captured = self._gpu_lets.get(gpu_let)
        if captured is None:
            raise GpuLetGone(f"there is no gpu-let {gpu_let}")
        torch.cuda.set_device(self.device)
        with torch.cuda.stream(captured.stream):
            yield

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        captured = self._gpu_lets.get(gpu_let)
        if captured is None:
            raise GpuLetGone(f"there is no gpu-let {gpu_let}")
        with captured.lock:
            graphed = captured.models.get(model)
            if graphed is None:
                raise GpuLetGone(f"{gpu_let} does not serve {model}")
            return graphed.run(inputs, batch)

    def close(self) -> None:
        self._gpu_lets = {}
        for captured in self._captured_streams.values():
            for model in list(captured.models):
                captured.drop(model)
        torch.cuda.synchronize()
        self._captured_streams.clear()
        self._models.clear()

    def _prepare(self, captured: CapturedStream, model: str, batch: int, *, in_use: bool) -> None:
        if model not in self._models:
            raise ModelError(f"{model} is not loaded")
        captured.used = time.monotonic()
        spec, loaded = self._models[model]
        there = captured.models.get(model)
        if there is not None and there.loaded is loaded and there.largest >= batch:
            return  # else it is another version of the model, or its batches are too small
        sizes = ladder(max(1, batch))
        if in_use:
            other = captured.other_stream(lambda: self.another_stream(captured))
            made = Graphed(spec, loaded, captured.stream, sizes, captured_on=other)
            with captured.lock:
                captured.put(model, made)
        else:
            with captured.lock:  # its previous user may still run its last batch
                captured.stream.synchronize()
                made = Graphed(spec, loaded, captured.stream, sizes)
                captured.put(model, made)
        self._report(captured, model, made)

    def _report(self, captured: CapturedStream, model: str, made: Graphed) -> None:
        if made.why_eager and model not in self._eager:
            logger.warning("%s runs without CUDA graphs on %s: %s", made.spec.name, captured.key, made.why_eager)
            if made.loaded.module is None or not made.missing:
                self._eager.add(model)  # it always will; a capture that failed is news each time
        for size, why in made.missing.items() if made.why_eager is None else ():
            logger.warning("%s on %s has no CUDA graph for batches of %d: %s", made.spec.name, captured.key, size, why)

    @property
    def slower(self) -> list[str]:
        """What runs without CUDA graphs that should have them, a line each."""
        lines = []
        for gpu_let, captured in self._gpu_lets.items():
            for made in captured.models.values():
                model = made.spec.name
                if made.why_eager and made.missing:
                    lines.append(f"{model} on {gpu_let}: no CUDA graphs: {made.why_eager}")
                else:
                    lines += [f"{model} on {gpu_let}: no CUDA graph of {n}: {why}" for n, why in made.missing.items()]
        return lines

    def graphs(self) -> list[dict[str, object]]:
        """How each model of each gpu-let runs: let, model, batches with a graph, those without, and why."""
        return [
            {
                "let": gpu_let,
                "model": model,
                "batches": [] if made.why_eager else list(made.batches),
                "missing": {str(size): why for size, why in made.missing.items()},
                "retried": made.retried,
                "why_eager": made.why_eager,
            }
            for gpu_let, captured in self._gpu_lets.items()
            for model, made in captured.models.items()
        ]

    def _make_room(self) -> None:
        """Drops graphs that nobody uses, those unused for longest first, while the device's memory is short."""
        used = set(map(id, self._gpu_lets.values()))
        idle = sorted(
            (s for s in self._captured_streams.values() if id(s) not in used and s.models), key=lambda s: s.used
        )
        for captured in idle:
            free, total = torch.cuda.mem_get_info()
            if free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > SPARE * total:
                return
            for model in list(captured.models):
                captured.drop(model)
