"""One batch through a CUDA graph in one call that holds no lock of Python's: ctypes over libgembatch.so.1.

Each call out of Python gives the interpreter's lock up and must get it back, which beside other busy threads takes
longer than what was called. From the first staged byte to the synchronised result there is one such call here.

No torch in here: addresses and handles come as numbers. The structures are those of native/batch/batch.h.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from gemlet import paths
from gemlet.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)
LIBRARY = "libgembatch.so.1"


class Step(IntEnum):
    """gembatch_step: where a batch failed."""

    NOTHING = 0
    CONTEXT = 1
    INPUT = 2
    LAUNCH = 3
    OUTPUT = 4
    WAIT = 5


class _Input(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_void_p), ("staging", ctypes.c_void_p),
        ("device", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
    )  # fmt: skip


class _Output(ctypes.Structure):
    _fields_ = (("device", ctypes.c_uint64), ("host", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _Batch(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("graph", ctypes.c_void_p),
        ("inputs", ctypes.POINTER(_Input)), ("outputs", ctypes.POINTER(_Output)),
        ("done", ctypes.c_void_p),
        ("input_count", ctypes.c_uint32), ("output_count", ctypes.c_uint32), ("ticket", ctypes.c_uint32),
        ("step", ctypes.c_uint32), ("place", ctypes.c_uint32),
    )  # fmt: skip


class BatchFailed(RuntimeError):
    """The driver refused a step, or the device failed. ``code``: the CUresult; ``place``: of which input or output."""

    def __init__(self, code: int, message: str, step: Step, place: int, name: str = "") -> None:
        where = {
            Step.CONTEXT: "making the context current",
            Step.INPUT: f"copying input {name!r}",
            Step.LAUNCH: "launching the graph",
            Step.OUTPUT: f"copying output {name!r}",
        }.get(step)
        super().__init__(f"CUDA error: {message}" + (f" ({where})" if where else ""))  # torch's words
        self.code, self.step, self.place = code, step, place


class Driver:
    """The library, and the primary context of one device: the one that torch uses. It stays retained.

    Raises DeviceError where the library is not built, where it finds no driver, or where that refuses.
    """

    def __init__(self, device: int) -> None:
        path = os.path.join(paths.lib_dir(), LIBRARY)  # noqa: PTH118  what ctypes takes
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(f"cannot load {LIBRARY}: {error}", hint="run `make native` in a checkout") from None
        context, missing = ctypes.c_void_p(), ctypes.create_string_buffer(200)
        if library.gembatch_open(device, ctypes.byref(context), missing, ctypes.c_uint64(len(missing))):
            raise DeviceError(f"{LIBRARY} cannot use the driver: {missing.value.decode(errors='replace')}")
        self.context = context.value
        self.run = library.gembatch_run
        self.run.argtypes, self.run.restype = (ctypes.c_void_p,), ctypes.c_int
        self._message = library.gembatch_words
        self._message.restype = ctypes.c_char_p

    def message(self, code: int) -> str:
        """What a CUresult means."""
        message: bytes = self._message(code)
        return message.decode(errors="replace")


@functools.cache
def driver(device: int) -> Driver | None:
    """The same library each time. None, with one line in the log, if there is none: batches then go through Python."""
    try:
        return Driver(device)
    except DeviceError as error:
        logger.warning("batches take several calls of Python each: %s", error.message)
        return None


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph. ``host``: C-contiguous, in page-locked memory, of the shape and type that the device has.

    ``device``: a CUdeviceptr.
    """

    name: str
    host: np.ndarray
    device: int


class BatchCall:
    """One batch of one size through one graph, again and again. For one thread.

    ``graph``: a CUgraphExec; ``stream``: a CUstream; ``done``: a word (uint32) of page-locked memory, for this call
    alone, that says when the device is done; without it the thread waits inside the driver. Graph, stream and memory
    must be there for as long as `run` is called; the host's arrays are kept.
    """

    def __init__(
        self,
        driver: Driver,
        stream: int,
        graph: int,
        inputs: Sequence[GraphTensor],
        outputs: Sequence[GraphTensor],
        *,
        done: np.ndarray | None = None,
    ) -> None:
        self._driver = driver
        entries = (_Input * len(inputs))(*(_Input(None, _address(t.host), t.device, t.host.nbytes) for t in inputs))
        results = (_Output * len(outputs))(*(_Output(t.device, _address(t.host), t.host.nbytes) for t in outputs))
        self._done = done
        word = None if done is None else _address(done)
        first = 0 if done is None else int(done[0])
        self._batch = _Batch(driver.context, stream, graph, entries, results, word, len(inputs), len(outputs), first)
        self._given = ctypes.addressof(self._batch)
        # What a call needs of each input: attributes of a tensor would be looked up each time.
        self._inputs = [
            (tensor.name, tensor.host, tensor.host.dtype, tensor.host.shape, entry)
            for tensor, entry in zip(inputs, entries, strict=True)
        ]
        self._outputs = {tensor.name: tensor.host for tensor in outputs}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs, in arrays that are valid until the next call. What the graph's inputs hold is np.copyto's.

        Raises BatchFailed, then nothing of the batch runs any more; ValueError and TypeError of np.copyto.
        """
        given = []  # objects that a mapping makes on request must live until the call has read them
        for name, host, dtype, shape, entry in self._inputs:
            array = inputs[name]
            given.append(array)
            if array.dtype == dtype and array.shape == shape and array.flags.c_contiguous:
                entry.source = array.ctypes.data
            else:  # another type, other strides, or to be repeated: Python's affair, before the call
                np.copyto(host, array)
                entry.source = None
        code = self._driver.run(self._given)
        if code:
            raise self._failure(code)
        return dict(self._outputs)

    def _failure(self, code: int) -> BatchFailed:
        step, place = Step(self._batch.step), int(self._batch.place)
        names = {Step.INPUT: [each[0] for each in self._inputs], Step.OUTPUT: list(self._outputs)}.get(step)
        return BatchFailed(code, self._driver.message(code), step, place, names[place] if names else "")


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)
