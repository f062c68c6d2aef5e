"""What gemlet does at the end of an iteration of a PyTorch program: right after an optimizer's step.

`dead` tells the preloaded library which of the caching allocator's blocks nobody uses, so that they are not copied when
the program's memory leaves the device. It asks first whether that is of use, which costs a call where it is not.
`empty-cache` gives all of them back to the driver.

This file runs inside programs that know nothing of it, under their Python (3.8 and later) and their PyTorch: it
imports nothing that PyTorch has not imported, and no failure of it reaches the program. It is loaded by path: the
program's Python need not have gemlet installed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

# What gemlet_iteration_ends() answers (native/hook/swap/declare.h).
USELESS, USEFUL, WANTED = range(3)

LEAST = 512 << 10  # bytes: a hole in what is copied costs about as much as copying this
SHARE = 200  # unasked, at most 1/SHARE of the time goes into looking at the allocator
LONGEST = 0.1  # seconds: a program that waits for a look that takes longer has waited in vain


class Off(Exception):
    """The hook cannot work in this program; the text says why."""


def unused(segments: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """Starts and sizes in bytes of the blocks whose content nobody will read, of `torch.cuda.memory_snapshot()`.

    Not of private pools: a graph's replay may read a block whose tensor is gone, if another graph of the pool wrote it
    (the output of one, the input of the next), and nobody can tell the rest of a pool from such.
    """
    starts: list[int] = []
    sizes: list[int] = []
    for segment in segments:
        if tuple(segment["segment_pool_id"]) != (0, 0):
            continue
        at = segment["address"]
        for block in segment["blocks"]:
            size = block["size"]
            # "active_pending_free" waits for another stream, which may still read it.
            if block["state"] == "inactive" and size >= LEAST:
                starts.append(at)
                sizes.append(size)
            at += size
    return starts, sizes


class Dead:
    """Declares unused blocks dead, when asked or when there is time."""

    def __init__(self, torch: Any, library: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """``library``: what has the functions of native/hook/swap/declare.h. Raises `Off`."""
        try:
            self._ends = library.gemlet_iteration_ends
            self._begin = library.gemlet_dead_begin
            self._declare = library.gemlet_declare_dead
        except AttributeError:
            raise Off("the preloaded library is not there, or of another version of gemlet") from None
        numbers = ctypes.POINTER(ctypes.c_uint64)
        self._ends.argtypes, self._ends.restype = [], ctypes.c_int
        self._begin.argtypes, self._begin.restype = [], ctypes.c_uint64
        self._declare.argtypes = [ctypes.c_uint64, numbers, numbers, ctypes.c_uint64]
        self._declare.restype = ctypes.c_int64
        self._torch = torch
        self._clock = clock
        self._snapshot: Callable[[], Any] | None = None
        self._not_before = 0.0
        self._cost = 0.0  # seconds, of the last look

    def __call__(self) -> None:
        use = self._ends()
        if use == USELESS:
            return
        began = self._clock()
        idle = began >= self._not_before
        if use == USEFUL and not idle:
            return
        ticket = self._begin()  # first: what is submitted from here on ends the declaration
        starts: list[int] = []
        sizes: list[int] = []
        try:
            if idle or self._cost <= LONGEST:
                starts, sizes = self._look()
                self._cost = self._clock() - began
                self._not_before = began + self._cost * SHARE
        finally:
            count = len(starts)
            array = ctypes.c_uint64 * count
            self._declare(ticket, array(*starts), array(*sizes), count)  # of none too: somebody may wait for it

    def _look(self) -> tuple[list[int], list[int]]:
        cuda = self._torch.cuda
        if self._snapshot is None:
            backend = cuda.get_allocator_backend()
            if backend != "native":
                raise Off(f"the allocator is {backend}, whose unused blocks cannot be listed")
            self._snapshot = _cheapest(cuda.memory_snapshot)
        return unused(self._snapshot())


def _cheapest(snapshot: Any) -> Callable[[], Any]:
    """Without the history of allocations, where this PyTorch can leave it out."""
    names = snapshot.__code__.co_varnames[: snapshot.__code__.co_argcount]
    return (lambda: snapshot(include_traces=False)) if "include_traces" in names else snapshot


class EmptyCache:
    """Gives what is cached and unused back to the driver."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __call__(self) -> None:
        self._torch.cuda.empty_cache()


def action(what: str, torch: Any) -> Callable[[], None]:
    """What to do after each step. Raises `Off`."""
    if what == "dead":
        return Dead(torch, ctypes.CDLL(None))
    if what == "empty-cache":
        return EmptyCache(torch)
    raise Off(f"GEMLET_TORCH is {what!r}, of which this version of gemlet knows nothing")


def install(optimizers: Any, what: str) -> None:
    """``optimizers``: the module torch.optim.optimizer, just imported. Tells the daemon if that cannot be done."""
    try:
        torch = sys.modules["torch"]  # not complete yet: what is used of it is looked up when it is used
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            raise Off("this PyTorch is too old: it has no hooks for all optimizers")
        register(after_step(torch, action(what, torch)))
    except Exception as error:  # the program goes on
        tell(error)


def after_step(torch: Any, act: Callable[[], None]) -> Callable[[Any, Any, Any], None]:
    """The hook: does ``act`` until that fails for the first time."""
    off = False

    def hook(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal off
        # A step that is being compiled or captured is not run, and what is in its place later does not come here.
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        if compiling is not None and compiling():
            return
        if off:
            return
        try:
            if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
                act()
        except Exception as error:  # the program goes on
            off = True
            tell(error)

    return hook


def tell(error: Exception) -> None:
    """Says in the daemon's log why there is no hook in this process. In vain where the daemon has no such ear."""
    text = str(error) if isinstance(error, Off) else f"{type(error).__name__}: {error}"
    try:
        import json  # only now
        import socket

        path = os.path.join(os.path.dirname(os.environ["GEMLET_SOCKET"]), "api.sock")
        line = "".join(c for c in " ".join(text.split()) if c.isprintable())
        request = {"v": 1, "op": "note", "topic": "torch hook is off", "text": line[:400]}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
            daemon.settimeout(0.5)
            daemon.connect(path)
            daemon.sendall(json.dumps(request).encode() + b"\n")
            daemon.recv(1)
    except Exception:
        pass
