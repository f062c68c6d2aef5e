"""The server's side of an executor: starts the process, sends it work, notices its death at once.

Runs end in futures of the server's event loop. Each is resolved exactly once: by Done, by Failed, or, when the process
ends, by ExecutorDied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gemlet.errors import GemletError
from gemlet.serve.execution import arena, protocol
from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone
from gemlet.serve.execution.copying import Copying, copy
from gemlet.serve.execution.loan import FREE, Loan
from gemlet.serve.execution.printed import PassedOn
from gemlet.serve.models.specification import ModelError, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.execution.loan import Kept

    Asked = Callable[["Executor", protocol.Ask | protocol.Cancel], None]  # of what a model asks another; replies

logger = logging.getLogger(__name__)

START_SECONDS = 120.0  # importing torch and making a CUDA context, on a busy machine
STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 1.0  # for what a process that has ended said before
ARENA_BYTES = 256 * 1024**2
COPY_BYTES = 1 << 20  # of inputs, that are copied in the event loop at once: half a millisecond
ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # so that CUDA counts devices as NVML does


class ExecutorDied(GemletError):
    """The process ended while it had this work."""


class ExecutorFailed(GemletError):
    """It could not be started."""


_Place = tuple[int, memoryview]  # offset in the arena, and the memory there
Outputs = tuple[tuple[protocol.ArenaTensor, memoryview], ...]
Answer = Outputs | protocol.FailedRequest


@dataclass(frozen=True, slots=True)
class Result:
    """What a batch came to. ``outputs`` by name with their bytes, which are valid until the end of the loan.

    answers: for each request its own, of a model that answers them one by one; ``outputs`` is empty then.
    """

    outputs: Outputs
    ms: float
    loan: Loan = FREE
    answers: tuple[Answer, ...] | None = None


class Lane(asyncio.Protocol):
    """Cuts the stream of a socket pair into messages."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        self._executor.lane_lost(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= protocol.LENGTH_BYTES:
            start = at + protocol.LENGTH_BYTES
            end = start + int.from_bytes(self._buffer[at:start], "little")
            if end > len(self._buffer):
                break
            with memoryview(self._buffer)[start:end] as part:  # no copy: it may be of many megabytes
                message = protocol.to_server.decode(part)
            self._executor.received(message)
            at = end
        del self._buffer[:at]


class Link(Lane):
    """The socket pair of all, whose end is that of the process."""

    def connection_lost(self, _exc: Exception | None) -> None:
        self._executor.lost()


class Executor:
    """One process. ``name`` is for people; ``environment`` is added to its own."""

    def __init__(
        self,
        name: str,
        backend: str,
        options: BackendOptions,
        *,
        environment: Mapping[str, str] | None = None,
        arena_bytes: int = ARENA_BYTES,
        on_ask: Asked | None = None,
    ) -> None:
        self.name = name
        self.backend = backend
        self.note = ""
        self.slower: tuple[str, ...] = ()  # what runs without CUDA graphs that should have them, a line each
        self.pid = 0
        self.died = asyncio.Event()
        self.died_at_work = False  # with batches that it had not answered
        self._options = options
        self._environment = dict(environment or {})
        self._arena_bytes = arena_bytes
        self._on_ask = on_ask
        self._loop = asyncio.get_running_loop()  # to ask for it costs a system call
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._held: dict[int, list[int]] = {}  # ticket -> offsets of its inputs
        self._ticket = 0
        self._transport: asyncio.Transport | None = None
        self._door: socket.socket | None = None
        self._lanes: dict[str, asyncio.Transport] = {}  # by gpu-let
        self._without_lane: set[str] = set()  # gpu-lets, for as long as they are there: their threads read none
        self._process: asyncio.subprocess.Process | None = None
        self._handle: int | None = None  # a pidfd: to signal by asyncio's Process may take the exit status from it
        self._printed: PassedOn | None = None
        self._copying: Copying | None = None
        self._watching: asyncio.Task[None] | None = None
        self._inputs: arena.Arena | None = None
        self._outputs: arena.Mapping | None = None
        self._closing = False

    async def start(self) -> None:
        """Starts the process and waits until its backend is there. Raises ExecutorFailed."""
        hello: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[0] = hello
        try:
            with contextlib.ExitStack() as passed:
                await self._begin(passed)
        except (OSError, RuntimeError) as error:  # the latter where no thread can be started
            self._drop()
            raise ExecutorFailed(f"{self.name} could not be started: {getattr(error, 'strerror', error)}") from error
        try:
            greeting = await asyncio.wait_for(hello, START_SECONDS)
        except TimeoutError:
            await self.close()
            raise ExecutorFailed(f"{self.name} did not start within {START_SECONDS:g} s") from None
        except GemletError as error:
            await self.close()
            raise ExecutorFailed(f"{self.name}: {error.message}", hint=error.hint) from None
        except asyncio.CancelledError:
            await self.close(0.0)
            raise
        self.backend, self.note = greeting.backend, greeting.note

    async def _begin(self, passed: contextlib.ExitStack) -> None:
        """Starts the process, which has what is closed here with ``passed``. Raises OSError."""
        ours, theirs = socket.socketpair()
        passed.enter_context(theirs)
        with contextlib.ExitStack() as unused:
            unused.enter_context(ours)
            ours.setblocking(False)
            self._door, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._door.setblocking(False)  # it is emptied only once its process is told to
            passed.enter_context(door)
            shared = []
            for _ in range(2):
                shared.append(arena.create(self._arena_bytes))
                passed.callback(os.close, shared[-1])
            self._inputs, self._outputs = arena.Arena(shared[0]), arena.Mapping(shared[1])
            transport, _ = await self._loop.create_connection(lambda: Link(self), sock=ours)
            unused.pop_all()
        self._transport = transport
        self._copying = Copying(self._loop)
        self._printed = PassedOn(self.name)
        passed.callback(self._printed.began)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "gemlet.serve.execution.worker", "--fd", str(theirs.fileno()),
            "--door", str(door.fileno()), "--inputs", str(shared[0]), "--outputs", str(shared[1]),
            "--backend", self.backend,
            pass_fds=(theirs.fileno(), door.fileno(), *shared), stdin=asyncio.subprocess.DEVNULL,
            stdout=self._printed.descriptor, stderr=self._printed.descriptor,
            start_new_session=True,  # what a model sends to its process group is not for the server
            env=ENVIRONMENT | os.environ | self._environment,
        )  # fmt: skip
        self.pid = self._process.pid
        with contextlib.suppress(ProcessLookupError):  # it has ended
            self._handle = os.pidfd_open(self.pid)
        self._watching = self._loop.create_task(self._watch(self._process))
        transport.write(protocol.frame(protocol.Begin(self._options)))

    async def load(self, model: ModelSpec) -> int:
        """Bytes of device memory that the model takes. Raises ModelError, ExecutorDied."""
        loaded = await self._ask(lambda ticket: protocol.Load(ticket, model))
        memory: int = loaded.memory
        return memory

    async def unload(self, model: str) -> None:
        await self._ask(lambda ticket: protocol.Unload(ticket, model))

    async def ping(self) -> None:
        """Returns once the process has carried out what it was told before. Raises ExecutorDied."""
        await self._ask(protocol.Ping)

    @property
    def at_work(self) -> bool:
        """Whether it has batches that it has not answered."""
        return bool(self._held)

    async def partition(self, gpu_lets: Sequence[GpuLet]) -> float:
        """Makes these the gpu-lets; milliseconds that it took. Raises ModelError, ExecutorDied."""
        known = self._lanes.keys() | self._without_lane
        fresh = await self._opened([each.name for each in gpu_lets if each.name not in known])
        try:
            finished = await self._ask(lambda ticket: protocol.Partition(ticket, tuple(gpu_lets), tuple(fresh)))
        except BaseException:
            for lane in fresh.values():
                lane.close()
            raise
        self._lanes |= fresh
        names = {each.name for each in gpu_lets}
        for name in self._lanes.keys() - names:
            _end(self._lanes.pop(name))  # what is on its way is still answered
        self._without_lane = names - self._lanes.keys()
        self.slower = finished.slower
        ms: float = finished.ms
        return ms

    async def _opened(self, gpu_lets: Sequence[str]) -> dict[str, asyncio.Transport]:
        """A lane for each, whose other end lies at the door; where there are no descriptors left, or there is no more
        room at the door, for fewer."""
        lanes: dict[str, asyncio.Transport] = {}
        for name in gpu_lets if self._door is not None else ():
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                logger.warning("%s has no lane for %s: %s", self.name, name, error.strerror)
                break
            ours.setblocking(False)
            with theirs:
                lane, _ = await self._loop.create_connection(lambda: Lane(self), sock=ours)
                if self._door is None:  # the process is gone meanwhile
                    lane.close()
                    break
                try:
                    socket.send_fds(self._door, [b"."], [theirs.fileno()])
                except OSError as error:  # a few hundred lie there already, or the process is gone
                    logger.debug("%s has lanes for the first %d gpu-lets: %s", self.name, len(lanes), error.strerror)
                    lane.close()
                    break
                lanes[name] = lane
        return lanes

    def run(
        self,
        gpu_let: str,
        model: str,
        inputs: Sequence[Input],
        rows: int,
        requests: tuple[protocol.RequestInfo, ...] = (),
        *,
        nesting: protocol.Nesting = protocol.OUTERMOST,
    ) -> asyncio.Future[Result]:
        """Runs a batch; ``requests``: what it is made of, if the model wants to know. ``nesting``: what waits for it.

        The future raises ModelError, GpuLetGone, ExecutorDied, and what goes wrong with what was given; this does not.
        """
        future: asyncio.Future[Result] = self._loop.create_future()
        to = self._transport if nesting.beside else self._lanes.get(gpu_let, self._transport)
        if to is None or to.is_closing() or self._inputs is None:
            future.set_exception(GpuLetGone(f"{self.name} is not running"))  # it did not die of this batch
            return future
        self._ticket += 1
        ticket, held = self._ticket, list[int]()
        self._held[ticket] = held
        self._waiting[ticket] = future
        frames: list[bytes] = []

        def place() -> None:
            placed = tuple([_placed(each, there) for each, there in places])
            frames.append(protocol.frame(protocol.Run(ticket, gpu_let, model, rows, placed, requests, nesting)))

        try:
            places = [(each, self._allocate(each, held)) for each in inputs]
            if sum([each.nbytes for each in inputs]) > COPY_BYTES and self._copying is not None:
                self._copying(place, lambda error: self._send(ticket, gpu_let, to, frames, error))
            else:
                place()
                to.write(*frames)
        except Exception as error:  # noqa: BLE001  its gpu-let would be taken for busy if nothing came back
            self._fail(ticket, error)
        return future

    def _send(
        self, ticket: int, gpu_let: str, to: asyncio.Transport, frames: list[bytes], error: Exception | None
    ) -> None:
        """A batch whose inputs were copied meanwhile."""
        if ticket not in self._waiting:
            return  # the process has died
        if error is not None:
            self._fail(ticket, error)
        elif to is not self._transport and to is not self._lanes.get(gpu_let):
            self._fail(ticket, GpuLetGone(f"there is no gpu-let {gpu_let} any more"))
        else:
            to.write(*frames)

    def _fail(self, ticket: int, error: Exception) -> None:
        """A batch that the process does not know of."""
        self._give_back(ticket)
        future = self._waiting.pop(ticket)
        if not future.done():
            future.set_exception(error)

    def reply(self, message: protocol.Reply) -> None:
        """Answers what one of its models asked; to nobody if it is gone."""
        if self._transport is not None:
            self._transport.write(protocol.frame(message))

    def reply_large(
        self, number: int, outputs: Sequence[protocol.ArenaTensor], data: Sequence[Buffer], kept: Kept
    ) -> None:
        """As reply(), with what is copied beside the event loop. ``kept``: the loan of ``data``."""
        if self._transport is None or self._copying is None:
            kept.end()
            return
        pieces = protocol.reply_in_pieces(number, outputs, data)
        frame = np.empty(sum([len(piece) for piece in pieces]), np.uint8)

        def copied(error: Exception | None) -> None:
            kept.end()
            if error is not None:
                self.reply(protocol.Reply(number, error=f"{type(error).__name__}: {error}"))
            elif self._transport is not None:
                self._transport.write(frame.data)

        self._copying(lambda: copy(pieces, frame.data), copied)

    async def close(self, patience_s: float = STOP_SECONDS) -> None:
        """Ends the process: asks it, and kills it after this many seconds."""
        self._closing = True
        if self._transport is not None:
            lanes, self._lanes = self._lanes, {}
            for lane in lanes.values():
                _end(lane)
            self._transport.write(protocol.frame(protocol.Stop()))
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                self.kill()
                await self._process.wait()
        if self._printed is not None:
            await asyncio.to_thread(self._printed.finish)
        self._drop()

    def kill(self) -> None:
        """Ends the process at once: for an executor that hangs, and for tests."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    async def reap(self) -> int | None:
        """Waits for the end of the process; its exit status, negative for a signal."""
        return await self._process.wait() if self._process is not None else None

    def received(self, message: protocol.ToServer) -> None:
        if isinstance(message, protocol.Log):
            logging.getLogger(message.logger).log(message.level, "%s: %s", self.name, message.line)
            return
        if isinstance(message, protocol.Ask | protocol.Cancel):
            if self._on_ask is not None:
                self._on_ask(self, message)
            elif isinstance(message, protocol.Ask):
                self.reply(protocol.Reply(message.number, error="no other models are served here"))
            return
        ticket = 0 if isinstance(message, protocol.Hello) else message.ticket
        future = self._waiting.pop(ticket, None)
        self._give_back(ticket)
        outputs = _outputs(message)
        offsets = tuple(tensor.offset for tensor in outputs if tensor.offset >= 0)
        loan = Loan(partial(self._release, offsets)) if offsets else FREE
        if future is not None and not future.done():
            if isinstance(message, protocol.Failed):
                future.set_exception(_error(message))
            elif isinstance(message, protocol.Done):
                found = tuple((tensor, self._bytes(tensor)) for tensor in outputs)
                future.set_result(Result(found, message.ms, loan))
            elif isinstance(message, protocol.DoneEach):
                answers = tuple([self._answer(each) for each in message.answers])
                future.set_result(Result((), message.ms, loan, answers))
            else:
                future.set_result(message)
        if offsets:
            # The future's callbacks are scheduled already; this comes after them.
            self._loop.call_soon(loan.end)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Notices the end of the process where its socket does not tell: a child of its, made by fork, has that too."""
        await process.wait()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        try:
            await asyncio.wait_for(self.died.wait(), LAST_WORDS_SECONDS)
        except TimeoutError:
            self.lost()

    def lane_lost(self, lane: asyncio.BaseTransport | None) -> None:
        """Nobody reads batches from one that is in use, or what came by it is no message: none would be answered. It is
        over for the process at once, for what is written to the lane until it has ended would fail."""
        if lane in self._lanes.values():
            self.lost()

    def lost(self) -> None:
        """The process is gone. One that has only closed its end, or become another program, is ended."""
        if self.died.is_set():
            return
        self.died_at_work = bool(self._held)
        if not self._closing:
            self.kill()
            logger.warning("%s (process %d) died with %d batches", self.name, self.pid, len(self._held))
        self._drop()

    async def _ask(self, message: Any) -> Any:
        if self._transport is None:
            raise ExecutorDied(f"{self.name} is not running")
        self._ticket += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[self._ticket] = future
        self._transport.write(protocol.frame(message(self._ticket)))
        return await future

    def _allocate(self, given: Input, held: list[int]) -> _Place | None:
        """Where it is to be in the arena; None: in the message."""
        assert self._inputs is not None
        offset = self._inputs.allocate(given.nbytes) if given.nbytes > protocol.SMALL_BYTES else None
        if offset is None:
            return None
        held.append(offset)
        return offset, self._inputs.view[offset : offset + given.nbytes]

    def _bytes(self, tensor: protocol.ArenaTensor) -> memoryview:
        if tensor.offset < 0 or self._outputs is None:
            return memoryview(tensor.inline)
        return self._outputs.view[tensor.offset : tensor.offset + tensor.nbytes]

    def _answer(self, answer: protocol.Answer) -> Answer:
        if isinstance(answer, protocol.FailedRequest):
            return answer
        return tuple([(tensor, self._bytes(tensor)) for tensor in answer.outputs])

    def _give_back(self, ticket: int) -> None:
        for offset in self._held.pop(ticket, ()):
            if self._inputs is not None:
                self._inputs.release(offset)

    def _release(self, offsets: tuple[int, ...]) -> None:
        if self._transport is not None:
            self._transport.write(protocol.frame(protocol.Release(offsets)))

    def _drop(self) -> None:
        self.died.set()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._copying is not None:
            self._copying.close()
            self._copying = None
        waiting, self._waiting = self._waiting, {}
        self._held.clear()
        for future in waiting.values():
            if not future.done():
                future.set_exception(ExecutorDied(f"{self.name} died"))
                future.exception()  # it may be that nobody waits for this one
        for shared in (self._inputs, self._outputs):
            if shared is not None:
                self._loop.call_soon(shared.close)
        self._inputs = self._outputs = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a batch: ``parts`` are the bytes of its requests, one after the other along axis 0."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parts: Sequence[bytes | bytearray | memoryview]
    nbytes: int


def _placed(given: Input, there: _Place | None) -> protocol.ArenaTensor:
    """An input that was copied where it is to be. In any thread."""
    if there is None:
        data = b"".join(given.parts)
        return protocol.ArenaTensor(given.name, given.datatype, given.shape, -1, given.nbytes, data)
    offset, view = there
    copy(given.parts, view)
    return protocol.ArenaTensor(given.name, given.datatype, given.shape, offset, given.nbytes)


def _end(lane: asyncio.Transport) -> None:
    """Nothing more is sent by it."""
    if not lane.is_closing():
        lane.write_eof()


def _outputs(message: protocol.ToServer) -> Sequence[protocol.ArenaTensor]:
    """All that a batch left in the arena."""
    if isinstance(message, protocol.Done):
        return message.outputs
    if isinstance(message, protocol.DoneEach):
        answers = [each for each in message.answers if isinstance(each, protocol.Answers)]
        return [tensor for answer in answers for tensor in answer.outputs]
    return ()


def _error(failed: protocol.Failed) -> GemletError:
    kind = GpuLetGone if failed.kind == "gone" else ExecutorFailed if failed.kind == "refused" else ModelError
    return kind(failed.message, hint=failed.hint)
