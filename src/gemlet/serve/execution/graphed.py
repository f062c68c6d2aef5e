"""A model on a stream, as CUDA graphs: one for each of a few batch sizes, replayed for any batch up to the next.

What has to be known of CUDA graphs here (capturing.py has the rest):
- A graph's kernels keep the green context of the stream that captured them, so each gpu-let captures its own.
- Graphs of one stream never run at the same time, so they share one memory pool; the largest is captured first.
- torch.cuda.graph() waits for the whole device and empties the cache, which would stall the neighbours. The calls of
  CUDAGraph do not. capture_error_mode "thread_local" lets other threads allocate meanwhile.
- What a library makes at its first call (handles, workspaces, chosen algorithms) must not be made in a capture, so the
  model runs before it, on the same stream: torch keeps a workspace of cuBLAS for each thread's handle and stream.
- A graph reads and writes fixed addresses: here the first rows of tensors of the largest batch.
- torch.cuda.synchronize() does not wait for the streams of green contexts: what such a stream may still use is dropped
  by `close`, which waits for that stream.
- A batch with a graph is one call of batch_call.py, unless torch must take part: where its replay() advances a
  generator of random numbers, before torch 2.8, which does not tell the graph's handle, or without that library.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from gemlet.serve.execution import batch_call, capturing
from gemlet.serve.execution.backend import DeviceLost
from gemlet.serve.execution.batch_call import BatchCall
from gemlet.serve.execution.torch_models import TORCH
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.serve.execution.capturing import Captured, Pool
    from gemlet.serve.execution.torch_models import Loaded
    from gemlet.serve.models.specification import ModelSpec

HOPELESS = 2  # after this many sizes that cannot be captured, and none that can, the model is the cause


class _Mine(threading.local):
    """What each thread has of its own: an old gpu-let's reply may be on its way when the next one's thread runs.

    ``buffers``: pinned, one for each output; ``calls``: by batch, None where a batch takes torch.
    """

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []
        self.calls: dict[int, BatchCall | None] = {}


class Graphed:
    """One model on one stream. The methods block, and are for one thread at a time.

    ``why_eager`` says why the model runs without graphs; None if it has them. ``batches``: that there are graphs for,
    ascending; ``largest``: that was asked for; ``missing``: those that could not be captured, and why: the next larger
    graph serves them, and batches above the largest run without one. ``retried``: captures that took more than one
    attempt. captured_on: another stream on the same SMs, while others still use ``stream``. Raises ModelError.
    """

    def __init__(
        self,
        spec: ModelSpec,
        loaded: Loaded,
        stream: torch.cuda.Stream,
        batches: Sequence[int],
        *,
        pool: Pool | None = None,
        captured_on: torch.cuda.Stream | None = None,
    ) -> None:
        self.spec, self.stream = spec, stream
        self.captured_on = captured_on or stream
        self.batches = sorted(set(batches)) if spec.max_batch else [1]
        self.largest = self.batches[-1]
        self.loaded = loaded
        self.missing: dict[int, str] = {}
        self.retried = 0
        self._graphs: dict[int, Captured] = {}
        self._staging: dict[str, torch.Tensor] = {}  # pinned, so that the copy to the device needs no host
        self._inputs: dict[str, torch.Tensor] = {}
        self._apart = capturing.Apart()
        self._mine = _Mine()
        self._driver: batch_call.Driver | None = None  # of the device that is current here, as `_reserve` takes it
        self.why_eager = self._obstacle()
        if self.why_eager is None:
            self._reserve()
            used = False
            try:
                used = self._capture(pool)
            finally:
                if not used:
                    self._apart.close()
        if self._graphs:
            self._driver = batch_call.driver(torch.cuda.current_device())

    def run(self, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        """One batch from host to host. What comes back is valid until this thread's next call.

        Raises ModelError; DeviceLost where no batch of any model can run in this process any more.
        """
        try:
            call = self._call_for(batch)
            return call.run(inputs) if call is not None else self._run(inputs, batch)
        # torch's or the driver's, whatever went wrong; numpy's, of shapes and types
        except (RuntimeError, ValueError, TypeError) as error:
            message = f"{self.spec.name} failed: {capturing.first_line(error)}"
            raise DeviceLost(message) if self._device_is_lost() else ModelError(message) from error

    def _device_is_lost(self) -> bool:
        """An error of the device stays: the next call fails with it, too. Other errors are over once they are
        reported."""
        try:
            self.stream.synchronize()
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        """Waits for what still runs on the stream, then drops the graphs and their memory."""
        self.stream.synchronize()
        self._mine = _Mine()  # no thread's calls outlive what they point to
        self._graphs.clear()
        self._inputs.clear()
        self._apart.close()

    def again(self, batch: int) -> None:
        """Submits one batch of what the inputs hold, without copies, and does not wait. Raises ModelError."""
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            if self._has_graph(batch):
                self._graphs[self.size_for(batch)].graph.replay()
            elif self._inputs:
                self._call([self._rows(each, batch) for each in self._inputs.values()])
            else:
                raise ModelError(f"{self.spec.name} cannot be run without copies: {self.why_eager}")

    def repeated(self, batch: int, times: int) -> Callable[[], None]:
        """A function that submits this many batches as one graph, so that the host need not keep up with short ones."""
        if times < 2 or not self._has_graph(batch):
            return lambda: self.again(batch)
        arguments = [self._rows(each, self.size_for(batch)) for each in self._inputs.values()]
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(self.stream), capturing.recording(graph):
            for _ in range(times):
                self._call(arguments)

        def launch() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return launch

    def size_for(self, batch: int) -> int:
        """The smallest captured batch that holds this one. Raises ModelError if none does."""
        if not self.spec.max_batch:
            return 1
        for size in self.batches:
            if size >= batch:
                return size
        raise self._too_large(batch)

    def _has_graph(self, batch: int) -> bool:
        if self.why_eager is not None:
            return False
        if self.spec.max_batch and batch > self.largest:
            raise self._too_large(batch)
        return not self.spec.max_batch or batch <= self.batches[-1]

    def _too_large(self, batch: int) -> ModelError:
        return ModelError(f"{self.spec.name}: a batch of {batch}, but at most {self.largest} are planned here")

    def _obstacle(self) -> str | None:
        if self.loaded.module is None:
            return "it is a function of arrays, not a torch module"
        for tensor in (*self.spec.inputs, *self.spec.outputs):
            if tensor.datatype not in TORCH:
                raise ModelError(f"{self.spec.name}: tensor {tensor.name} is {tensor.datatype}: torch has no such type")
        if any(-1 in tensor.shape for tensor in self.spec.inputs):
            return "an input has a dimension of any size"
        return None

    def _rows(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        return tensor[:count] if self.spec.max_batch else tensor

    def _reserve(self) -> None:
        rows = (self.batches[-1],) if self.spec.max_batch else ()
        with torch.cuda.stream(self.captured_on):
            for tensor in self.spec.inputs:
                dtype, shape = TORCH[tensor.datatype], (*rows, *tensor.shape)
                self._staging[tensor.name] = torch.zeros(shape, dtype=dtype, pin_memory=True)
                given = self._inputs[tensor.name] = torch.zeros(shape, dtype=dtype, device="cuda")
                if dtype.is_floating_point:  # what is not all the same tells more; integers may be places in a table
                    given.uniform_()

    def _capture(self, pool: Pool | None) -> bool:
        """Whether the other thread has captured anything that is kept."""
        used = False
        for size in reversed(self.batches):
            arguments = [self._rows(each, size) for each in self._inputs.values()]
            what = f"{self.spec.name}, batch {size}"
            try:
                made = capturing.capture(partial(self._call, arguments), self.captured_on, what, self._apart, pool)
            except torch.cuda.OutOfMemoryError as error:
                raise ModelError(f"{self.spec.name}: too little device memory for {size} at a time") from error
            except capturing.NotCaptured as error:
                self.missing[size] = str(error)
                if not self._graphs and len(self.missing) >= HOPELESS:
                    break
                continue
            pool = pool or made.graph.pool()
            self.retried += made.attempts > 1
            used = used or made.apart
            self._graphs[size] = made
        if self._graphs:
            self.batches = sorted(self._graphs)
        else:
            self.why_eager = next(iter(self.missing.values()))
        return used

    def _run(self, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            if self.loaded.infer is not None:
                return self.loaded.infer(inputs)
            results = self._replay(inputs, batch) if self._has_graph(batch) else self._eager(inputs)
            return self._to_host(results)

    def _call_for(self, batch: int) -> BatchCall | None:
        """This thread's way to run such a batch in one call; None where that is torch's affair."""
        calls = self._mine.calls
        if batch not in calls:
            has_graph = self.loaded.infer is None and self._has_graph(batch)
            calls[batch] = self._prepare_call(batch) if has_graph else None
        return calls[batch]

    def _prepare_call(self, batch: int) -> BatchCall | None:
        made = self._graphs[self.size_for(batch)]
        handle = getattr(made.graph, "raw_cuda_graph_exec", None)
        if self._driver is None or handle is None or made.draws:
            return None
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            results = [self._rows(each, batch) for each in made.outputs]
            if not all(map(_plain, results)):
                return None
            given = [
                batch_call.GraphTensor(name, _array(self._rows(self._staging[name], batch)), each.data_ptr())
                for name, each in self._inputs.items()
            ]
            taken = [
                batch_call.GraphTensor(spec.name, _array(self._host_place(place, result)), result.data_ptr())
                for place, (spec, result) in enumerate(zip(self.spec.outputs, results, strict=True))
            ]
            done = torch.zeros(1, dtype=torch.int32, pin_memory=True).numpy().view(np.uint32)
        return BatchCall(self._driver, self.stream.cuda_stream, handle(), given, taken, done=done)

    def _replay(self, inputs: Mapping[str, np.ndarray], batch: int) -> tuple[torch.Tensor, ...]:
        made = self._graphs[self.size_for(batch)]
        for name, target in self._inputs.items():
            staged = self._rows(self._staging[name], batch)
            np.copyto(_array(staged), inputs[name])  # torch would complain of arrays that may not be written
            self._rows(target, batch).copy_(staged, non_blocking=True)
        made.graph.replay()
        return tuple(self._rows(each, batch) for each in made.outputs)

    def _eager(self, inputs: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
        return self._call([torch.from_numpy(np.array(inputs[t.name])).to("cuda") for t in self.spec.inputs])

    def _call(self, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        assert self.loaded.module is not None
        result = self.loaded.module(*arguments)
        if isinstance(result, dict):
            result = [result[tensor.name] for tensor in self.spec.outputs]
        several = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(several) != len(self.spec.outputs) or not all(isinstance(each, torch.Tensor) for each in several):
            raise ModelError(f"{self.spec.name} returned something other than its {len(self.spec.outputs)} outputs")
        return tuple(each.contiguous() for each in several)  # in the graph, too, so that each is one copy to the host

    def _to_host(self, results: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
        host = [
            self._host_place(place, result).copy_(result, non_blocking=True) for place, result in enumerate(results)
        ]
        self.stream.synchronize()
        return {tensor.name: _array(each) for tensor, each in zip(self.spec.outputs, host, strict=True)}

    def _host_place(self, place: int, result: torch.Tensor) -> torch.Tensor:
        """Where this thread's output ``place`` goes: pinned, C-contiguous, of the result's shape and type."""
        buffers = self._mine.buffers
        if place == len(buffers) or buffers[place].nbytes < result.nbytes:
            largest = self._graphs[self.batches[-1]].outputs[place].nbytes if self._graphs else 0
            room = max(result.nbytes, largest)  # at once for all batches: pinning takes milliseconds
            buffers[place : place + 1] = [torch.empty(room, dtype=torch.uint8, pin_memory=True)]
        return buffers[place][: result.nbytes].view(result.dtype).view(result.shape)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes on the device, in a row, are its values."""
    return tensor.is_cuda and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
