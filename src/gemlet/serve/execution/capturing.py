"""Capturing a CUDA graph so that it either is right or is known to have failed, and why.

One capture at a time in a process. Python's collector rests meanwhile: what it would destroy may be torch's, and whose
destructor asks the driver things that no capture allows. Other threads go on: only this thread's calls are watched.

A try may fail because of state that only this thread has. cuDNN's plans are kept by thread, and one that was chosen on
the whole device can be refused on a smaller part, where a thread that has no plans would have taken the next best; so
the second try is in a thread of its own. The last also lets this process make any call during the capture ("relaxed").
That thread must live as long as the graph: what a library compiled for a plan may go with the plan, and plans with the
thread.

A replay is compared with what the model itself gave, since a graph may not be silently wrong.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)
Pool = tuple[int, int]
Tensors = tuple[torch.Tensor, ...]
Mode = Literal["thread_local", "relaxed"]
# (in a thread of its own, what other calls may be made)
ATTEMPTS: tuple[tuple[bool, Mode], ...] = ((False, "thread_local"), (True, "thread_local"), (True, "relaxed"))
CLOSE = 0.02  # of the largest value: half precision in another order of sums
_CAPTURING = threading.Lock()  # of two captures at a time each would see the other's allocations


class NotCaptured(Exception):
    """All attempts failed; the message is the first line of the last error."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph and where its results lie. attempts: how many it took; apart: its `Apart` must live as long as it.

    draws: replay() advances torch's generator of random numbers, so nothing else may launch the graph.
    """

    graph: torch.cuda.CUDAGraph
    outputs: Tensors
    draws: bool
    attempts: int
    apart: bool


class Apart:
    """A thread that knows nothing yet; it starts when it is first asked, and ends with `close`. For one caller."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """Its result, or what it raises."""
        if self._thread is None:
            work = partial(self._work, torch.cuda.current_device())
            self._thread = threading.Thread(target=work, name="capture", daemon=True)
            self._thread.start()
        self._asked.put(function)
        result, error = self._answers.get()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _work(self, device: int) -> None:
        torch.cuda.set_device(device)
        while (function := self._asked.get()) is not None:
            try:
                self._answers.put((function(), None))
            except BaseException as error:  # noqa: BLE001  raised again in the thread that asked
                self._answers.put((None, error))
            del function  # and what it holds


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Pool | None = None, mode: Mode = "thread_local") -> Iterator[None]:
    """What is submitted inside goes into ``graph``. Raises RuntimeError; the first error, not what followed from it."""
    with _CAPTURING, _no_collection():
        begin: dict[str, Any] = {} if pool is None else {"pool": pool}
        graph.capture_begin(capture_error_mode=mode, **begin)
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that the capture was broken off is known
                graph.capture_end()
            raise
        graph.capture_end()


def capture(
    call: Callable[[], Tensors], stream: torch.cuda.Stream, what: str, apart: Apart, pool: Pool | None = None
) -> Captured:
    """``call`` as a graph of this stream. ``what`` it is, for the log: model and batch; ``apart``: for later attempts.

    Raises NotCaptured, and whatever else ``call`` raises that is not a RuntimeError; torch.cuda.OutOfMemoryError, too.
    """
    reason = ""
    for number, (own, mode) in enumerate(ATTEMPTS, 1):
        phase = ["warm-up"]
        begin = time.perf_counter()
        once = partial(_once, call, stream, pool, mode, phase)
        try:
            graph, outputs, draws = apart.call(once) if own else once()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = first_line(error)
            logger.warning(
                "%s: capture, attempt %d of %d (%s%s) failed in its %s after %.0f ms: %s",
                what, number, len(ATTEMPTS), mode, ", own thread" if own else "", phase[0],
                1000 * (time.perf_counter() - begin), reason,
            )  # fmt: skip
        else:
            if number > 1:
                logger.info("%s: captured at attempt %d", what, number)
            return Captured(graph, outputs, draws, number, own)
        _forget_error()
    raise NotCaptured(reason)


def first_line(error: BaseException) -> str:
    """What an error says first, or its name."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def same(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether tensors agree but for rounding; NaN agrees with NaN. Waits for the current stream."""
    return len(ones) == len(others) and all(_alike(one, other) for one, other in zip(ones, others, strict=True))


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    finite = torch.nan_to_num(other.float())
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(one.float(), other.float(), rtol=CLOSE, atol=CLOSE * largest, equal_nan=True))


def _once(
    call: Callable[[], Tensors], stream: torch.cuda.Stream, pool: Pool | None, mode: Mode, phase: list[str]
) -> tuple[torch.cuda.CUDAGraph, Tensors, bool]:
    with torch.inference_mode(), torch.cuda.stream(stream):
        expected = tuple(each.clone() for each in call())
        stream.synchronize()
        phase[0] = "capture"
        graph = torch.cuda.CUDAGraph()
        with recording(graph, pool, mode):
            outputs = call()
        phase[0] = "check"
        before = torch.cuda.get_rng_state()
        graph.replay()
        # Another thread may have drawn meanwhile; then torch goes on replaying a graph that need not be.
        draws = not torch.equal(torch.cuda.get_rng_state(), before)
        if not same(outputs, expected):
            again = tuple(each.clone() for each in call())
            if same(again, expected):  # else the model is never twice the same, and nothing can be said
                raise RuntimeError("the graph's results differ from the model's")
        stream.synchronize()
        return graph, outputs, draws


def _forget_error() -> None:
    """The runtime keeps this thread's last error and reports it to the next caller that asks, so ask for it here."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda").add_(1)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """In the whole process, as the collector runs in whatever thread allocates."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
