"""The executor's process: `python -m gemlet.serve.execution.worker --fd N --inputs N --outputs N --backend NAME`.
On another machine than the server's it is `--listen ADDRESS` in place of the descriptors, see hosting.py.

The main thread reads messages, one thread loads and partitions, one thread for each gpu-let reads batches from its
lane, or gets them from the main thread, and runs them. The process ends when told to, or when the server's end of the
socket is gone; a run that is still at work then dies with it.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import math
import os
import queue
import socket
import sys
import threading
import time
import traceback
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from gemlet.daemon.logs import Limiter
from gemlet.errors import DeviceError, GemletError
from gemlet.inference_protocol import tensors
from gemlet.serve.end_signals import end_children_by_sigterm, leave_them_to_the_server
from gemlet.serve.execution import backends, hosting, protocol
from gemlet.serve.execution.arena import Arena, Mapping, Nowhere
from gemlet.serve.execution.backend import DeviceLost, GpuLetGone
from gemlet.serve.execution.printed import LINES_PER_MINUTE
from gemlet.serve.execution.process_settings import Settings
from gemlet.serve.execution.python_host import PythonHost
from gemlet.serve.execution.triton.responses import Failure
from gemlet.serve.execution.whole_device import start_again_as_whole
from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Mapping as Dictionary

    import numpy as np

    from gemlet.serve.execution.backend import Backend, GpuLet
    from gemlet.serve.execution.triton.responses import Response
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger("gemlet.serve.executor")
DEVICE_LOST, NO_ORDERS, NO_FILES = 70, 71, 72  # exit codes
_Answer = protocol.Done | protocol.DoneEach | protocol.Failed  # of a batch


_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # that the server is at the other end of


def _leave_to_parent() -> None:
    """In a child that a model forked: it is not this process, whose end the server is to notice, and nobody else may
    answer in its place, as one would that goes on when its parent has ended."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in list(_sockets):
        if each.fileno() >= 0:
            os.dup2(nothing, each.fileno(), inheritable=False)  # so that its number is no other file's
    os.close(nothing)


class Channel:
    """The socket to the server. ``send`` may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # a model may have set a default, and a lane is silent for as long as nobody asks
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._lock = threading.Lock()
        _sockets.add(connection)

    def send(self, message: protocol.ToServer) -> None:
        with self._lock:
            self._connection.sendall(protocol.frame(message))

    def receive(self) -> protocol.ToExecutor | None:
        """The next message; None at the end."""
        head = self._stream.read(protocol.LENGTH_BYTES)
        if len(head) < protocol.LENGTH_BYTES:
            return None
        body = self._stream.read(int.from_bytes(head, "little"))
        message: protocol.ToExecutor = protocol.to_executor.decode(body)
        return message

    def wait_for_end(self) -> None:
        """Returns when the other end is gone. What still comes is not wanted."""
        with suppress(OSError):
            while self._connection.recv(65_536):
                pass

    def end(self) -> None:
        """The receiver gets the end, and is to close this."""
        with suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stream.close()
        self._connection.close()


@contextmanager
def _of_use() -> Iterator[None]:
    """A thread for which the server would wait if it ended: the process ends instead. A model may have closed the
    sockets, and the server does not notice while a child of the model's, or a thread that reads, has them too."""
    try:
        yield
    except BaseException:  # noqa: BLE001  a socket that is closed, or a defect
        with suppress(BaseException):  # standard error may be closed, too
            traceback.print_exc()
        os._exit(NO_ORDERS)


class LogSender(logging.Handler):
    """Sends log lines to the server, which writes them with its own: no more than printed.LINES_PER_MINUTE."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._limiter = Limiter(LINES_PER_MINUTE)

    def emit(self, record: logging.LogRecord) -> None:
        passes, left_out = self._limiter.allow(None, now=time.monotonic())
        if not passes:
            return
        if left_out:
            missed = f"{left_out} lines were left out: more than {LINES_PER_MINUTE} a minute"
            self._channel.send(protocol.Log(logging.WARNING, logger.name, missed))
        try:
            line = protocol.told(self.format(record))
        except Exception:  # noqa: BLE001  of what a model gave to be shown
            self.handleError(record)
        else:
            self._channel.send(protocol.Log(record.levelno, protocol.told(record.name), line))


class Worker:
    """One backend, its models and gpu-lets."""

    def __init__(
        self, backend: Backend, channel: Channel, inputs: Mapping, outputs: Arena, door: socket.socket | None = None
    ) -> None:
        self._backend = backend
        self._channel = channel
        self._door = door
        self._inputs = inputs
        self._outputs = outputs
        self._arena_lock = threading.Lock()
        self._models: dict[str, ModelSpec] = {}
        self._python = PythonHost(backend, self._models, channel.send)
        self._gpu_lets: dict[str, queue.SimpleQueue[protocol.Run | None]] = {}  # those without a lane
        self._named: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._orders: queue.SimpleQueue[protocol.Load | protocol.Unload | protocol.Partition | protocol.Ping | None]
        self._orders = queue.SimpleQueue()
        self._settings = Settings()

    def serve(self) -> None:
        """Works until told to stop or until the server is gone."""
        controller = threading.Thread(target=self._obey_or_end, name="orders")
        controller.start()
        if not self._read_until_stopped():
            os._exit(0)  # the results of running batches are no longer needed
        self._settings.start(self._end_with_server, name="end", daemon=True)
        self._orders.put(None)
        controller.join()
        for waiting in self._gpu_lets.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._python.close()

    def _read_until_stopped(self) -> bool:
        """Takes what the server sends, until it says so, or is gone."""
        with _of_use(), suppress(BrokenPipeError, ConnectionResetError):
            while (message := self._channel.receive()) is not None:
                if isinstance(message, protocol.Run):
                    self._enqueue(message)
                elif isinstance(message, protocol.Release):
                    with self._arena_lock:
                        for offset in message.offsets:
                            self._outputs.release(offset)
                elif isinstance(message, protocol.Reply):
                    self._python.answered(message)
                elif isinstance(message, protocol.Stop):
                    return True
                elif not isinstance(message, protocol.Begin):
                    self._orders.put(message)
        return False

    def _end_with_server(self) -> None:
        """The server kills a process that does not stop, unless it is killed before."""
        self._channel.wait_for_end()
        os._exit(0)

    def _obey_or_end(self) -> None:
        """Without orders the process is of no use, and the server would wait for this one: a model may have closed the
        socket while the main thread reads from it, which keeps it from the server's notice."""
        with _of_use():
            self._obey()

    def _obey(self) -> None:
        while (order := self._orders.get()) is not None:
            self._settings.restore()
            began = time.perf_counter()
            try:
                if isinstance(order, protocol.Load):
                    if self._python.takes(order.model):
                        memory = self._python.load(order.model)
                    else:
                        memory = self._backend.load(order.model)
                    self._models[order.model.key] = order.model
                    self._end_without_files()
                    self._channel.send(protocol.Loaded(order.ticket, memory))
                    continue
                if isinstance(order, protocol.Unload):
                    if not self._python.unload(order.model):
                        self._backend.unload(order.model)
                    self._models.pop(order.model, None)
                elif isinstance(order, protocol.Partition):
                    self._partition(order.gpu_lets, self._opened(order.lanes))
                slower = tuple(getattr(self._backend, "slower", ()))
                self._channel.send(protocol.Finished(order.ticket, 1000 * (time.perf_counter() - began), slower))
            except BaseException as error:  # noqa: BLE001  a model's file raises anything, SystemExit too
                self._end_without_files()
                self._channel.send(_failure(order.ticket, error))

    def _end_without_files(self) -> None:
        """Ends the process if a model has left it no open file: whatever model is to be loaded next, or plan to come,
        would fail for as long as it lives, also when the model that did it is unloaded."""
        self._settings.restore()  # a limit that the model set is for it alone
        try:
            os.close(os.open("/", os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EMFILE:
                logger.error("a model keeps all files open that this process may have; it ends, and is started again")
                os._exit(NO_FILES)

    def _opened(self, names: Sequence[str]) -> dict[str, Channel]:
        """The lanes at the door. Raises ModelError if a descriptor did not get through; none is open then."""
        lanes = {}
        for name in names:
            assert self._door is not None
            _, descriptors, _, _ = socket.recv_fds(self._door, 1, 1)
            if descriptors:
                os.set_inheritable(descriptors[0], False)
                lanes[name] = Channel(socket.socket(fileno=descriptors[0]))
        if len(lanes) < len(names):
            for lane in lanes.values():
                lane.close()
            raise ModelError("the executor has too many open files for another gpu-let")
        return lanes

    def _partition(self, gpu_lets: tuple[GpuLet, ...], lanes: Dictionary[str, Channel] | None = None) -> None:
        """Where that fails, the gpu-lets of before go on: what may fail comes before anything of them changes."""
        lanes = lanes or {}
        unread = dict(lanes)
        wanted = {gpu_let.name for gpu_let in gpu_lets}
        fresh: dict[str, queue.SimpleQueue[protocol.Run | None]] = {}
        self._threads = [each for each in self._threads if each.is_alive()]
        try:
            for name in wanted - self._named:
                if name in lanes:
                    thread = self._settings.start(self._run_lane, lanes[name], name=name)
                else:
                    fresh[name] = queue.SimpleQueue()
                    thread = self._settings.start(self._run_all, fresh[name], name=name)
                self._threads.append(thread)
                unread.pop(name, None)
            self._backend.partition(self._python.partition(gpu_lets))
        except BaseException:
            for lane in lanes.values():
                lane.end()
            for lane in unread.values():
                lane.close()
            for waiting in fresh.values():
                waiting.put(None)
            raise
        self._gpu_lets |= fresh
        for name in self._gpu_lets.keys() - wanted:
            self._gpu_lets.pop(name).put(None)  # ends what it has
        self._named = wanted

    def _enqueue(self, run: protocol.Run) -> None:
        if run.nesting.beside:
            name = f"beside {run.gpu_let}"
            self._settings.start(self._run_beside, run, name=name, daemon=True)
            return
        waiting = self._gpu_lets.get(run.gpu_let)
        if waiting is None:
            self._channel.send(protocol.Failed(run.ticket, "gone", f"there is no gpu-let {run.gpu_let} any more"))
        else:
            waiting.put(run)

    def _run_all(self, waiting: queue.SimpleQueue[protocol.Run | None]) -> None:
        with _of_use():
            while (run := waiting.get()) is not None:
                self._send(self._channel, self._answer(run))

    def _run_beside(self, run: protocol.Run) -> None:
        with _of_use():
            self._send(self._channel, self._answer(run))

    def _run_lane(self, lane: Channel) -> None:
        try:
            with _of_use(), suppress(BrokenPipeError, ConnectionResetError):  # the server has gone, as main() notices
                while isinstance(message := lane.receive(), protocol.Run):
                    self._send(lane, self._answer(message))
        finally:
            with suppress(OSError):  # a model may have closed it
                lane.close()

    def _send(self, channel: Channel, answer: _Answer) -> None:
        try:
            channel.send(answer)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  a name that is no text, or more than a message can have
            self._release(_outputs(answer))
            channel.send(_failure(answer.ticket, error))

    def _answer(self, run: protocol.Run) -> _Answer:
        try:
            return self._run(run)
        except DeviceLost as error:  # the server starts another process, and has the batch done there
            logger.error("%s; this process ends, since its device is lost to it", error.message)
            os._exit(DEVICE_LOST)
        except BaseException as error:  # noqa: BLE001  whatever a model raises is its requests' answer
            return _failure(run.ticket, error)

    def _run(self, run: protocol.Run) -> protocol.Done | protocol.DoneEach:
        model = self._models.get(run.model)
        if model is None:
            raise GpuLetGone(f"{run.model} is not loaded here any more")
        inputs = {tensor.name: self._array(tensor) for tensor in run.inputs}
        began = time.perf_counter()
        if run.requests and self._python.has(run.model):
            responses = self._python.run(run.gpu_let, run.model, inputs, run.requests, run.nesting)
            took = 1000 * (time.perf_counter() - began)
            return protocol.DoneEach(run.ticket, self._placed_each(model, responses), took)
        outputs = self._backend.run(run.gpu_let, run.model, inputs, run.rows)
        took = 1000 * (time.perf_counter() - began)
        return protocol.Done(run.ticket, self._placed(model, outputs), took)

    def _array(self, tensor: protocol.ArenaTensor) -> np.ndarray:
        data: tensors.Buffer = tensor.inline
        if tensor.offset >= 0:
            data = self._inputs.view[tensor.offset : tensor.offset + tensor.nbytes]
        array = tensors.to_array(data, tensor.datatype, tensor.shape)
        array.flags.writeable = False
        return array

    def _placed_each(self, model: ModelSpec, responses: Sequence[Response]) -> tuple[protocol.Answer, ...]:
        placed: list[protocol.Answer] = []
        with self._released_on_failure() as tensors_so_far:
            for response in responses:
                if isinstance(response, Failure):
                    placed.append(protocol.FailedRequest(protocol.told(response.message), response.code))
                    continue
                own = []
                for name, array in response.items():
                    own.append(self._place(model, name, _datatype(model, name, array), array))
                    tensors_so_far.append(own[-1])
                placed.append(protocol.Answers(tuple(own)))
        return tuple(placed)

    def _placed(self, model: ModelSpec, outputs: Dictionary[str, np.ndarray]) -> tuple[protocol.ArenaTensor, ...]:
        with self._released_on_failure() as placed:
            for spec in model.outputs:
                if spec.name not in outputs:
                    gave = f"it gave {', '.join(outputs)}"
                    raise ModelError(f"{model.name} gave no output {spec.name!r}", hint=gave)
                placed.append(self._place(model, spec.name, spec.datatype, outputs[spec.name], whole=True))
        return tuple(placed)

    @contextmanager
    def _released_on_failure(self) -> Iterator[list[protocol.ArenaTensor]]:
        """For what is placed: if one of them fails, nobody will read those before it."""
        placed: list[protocol.ArenaTensor] = []
        try:
            yield placed
            protocol.check_outputs(sum([tensor.nbytes for tensor in placed if tensor.offset < 0]))
        except Exception:
            self._release(placed)
            raise

    def _release(self, placed: Sequence[protocol.ArenaTensor]) -> None:
        """Of what nobody will read."""
        with self._arena_lock:
            for tensor in placed:
                if tensor.offset >= 0:
                    self._outputs.release(tensor.offset)

    def _place(
        self, model: ModelSpec, name: str, datatype: str, array: np.ndarray, *, whole: bool = False
    ) -> protocol.ArenaTensor:
        """whole: of a batch, which the server parts."""
        data: tensors.Buffer
        dtype = tensors.DTYPES.get(datatype)
        if dtype is not None and array.dtype == dtype and array.nbytes <= protocol.SMALL_BYTES:
            data = array.tobytes()
            return protocol.ArenaTensor(name, datatype, array.shape, -1, len(data), data)
        of_rows: tuple[int, ...] = ()
        least = math.prod(array.shape) * (tensors.LENGTH_BYTES if dtype is None else dtype.itemsize)
        if least > protocol.MAX_OUTPUTS and least > len(self._outputs.view):
            protocol.check_outputs(least)  # before it is copied: it may be of one element, repeated without end
        try:
            if datatype == "BYTES":
                elements = tensors.to_elements(array)
                data = tensors.pack(elements)
                of_rows = tensors.row_bytes(elements, array.shape) if whole and model.max_batch else ()
            else:
                data = tensors.to_buffer(array, datatype)
        except tensors.BadTensor as error:
            raise ModelError(f"output {name!r} of {model.name}: {error}") from None
        if len(data) > protocol.SMALL_BYTES:
            with self._arena_lock:
                offset = self._outputs.allocate(len(data))
            if offset is not None:
                self._outputs.view[offset : offset + len(data)] = data
                return protocol.ArenaTensor(name, datatype, array.shape, offset, len(data), of_rows=of_rows)
        return protocol.ArenaTensor(name, datatype, array.shape, -1, len(data), bytes(data), of_rows)


def _datatype(model: ModelSpec, name: str, array: np.ndarray) -> str:
    """What an array says of itself; numpy has no BF16, which the configuration says. Raises ModelError."""
    try:
        own = tensors.datatype_of(array)
    except tensors.BadTensor as error:
        raise ModelError(f"output {name!r} of {model.name}: {error}") from None
    if own != "UINT16":
        return own
    return next((spec.datatype for spec in model.outputs if spec.name == name and spec.datatype == "BF16"), own)


def _outputs(answer: _Answer) -> list[protocol.ArenaTensor]:
    """All that it has in the arena."""
    if isinstance(answer, protocol.Done):
        return list(answer.outputs)
    each = answer.answers if isinstance(answer, protocol.DoneEach) else ()
    return [tensor for one in each if isinstance(one, protocol.Answers) for tensor in one.outputs]


def _failure(ticket: int, error: BaseException) -> protocol.Failed:
    if isinstance(error, GpuLetGone):
        return protocol.Failed(ticket, "gone", protocol.told(error.message))
    if isinstance(error, GemletError):
        hint = None if error.hint is None else protocol.told(error.hint)
        return protocol.Failed(ticket, "model", protocol.told(error.message), hint)
    try:
        message = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  a model's own exception, whose text is code of the model's
        message = f"{type(error).__name__}, whose text cannot be had"
    logger.error("%s", message, exc_info=error)
    return protocol.Failed(ticket, "crash", protocol.told(message))


def _end_with_host() -> None:
    """The process that started this one for another machine holds its standard input open."""
    while os.read(0, 65_536):  # not by sys.stdin, whose lock the interpreter wants at its end
        pass
    os._exit(0)


def _set_up() -> None:
    """Of the interpreter and the process, before there is a model."""
    leave_them_to_the_server()
    end_children_by_sigterm()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a pipe leads to the server, and what is printed may be the last
    sys.dont_write_bytecode = True  # a model.py that is edited twice in a second must not be taken for the first


def main() -> int:
    parser = argparse.ArgumentParser(prog="gemlet.serve.execution.worker")
    for option in ("fd", "door", "inputs", "outputs", "announce"):
        parser.add_argument(f"--{option}", type=int)
    parser.add_argument("--listen", metavar="ADDRESS", help="for a server on another machine, in place of descriptors")
    parser.add_argument("--backend", required=True)
    arguments = parser.parse_args()
    refused: DeviceError | None = None
    if arguments.backend == "mps":
        try:
            start_again_as_whole("gemlet.serve.execution.worker")
        except DeviceError as error:
            refused = error
    _set_up()
    inputs: Mapping
    outputs: Arena
    door: socket.socket | None = None
    if arguments.listen:
        threading.Thread(target=_end_with_host, daemon=True).start()
        channel = Channel(hosting.listen(arguments.listen, arguments.announce))
        inputs = outputs = cast("Arena", Nowhere())
    else:
        for descriptor in (arguments.fd, arguments.door, arguments.inputs, arguments.outputs):
            # What a model starts would keep the end of this process from the server.
            os.set_inheritable(descriptor, False)
        channel = Channel(socket.socket(fileno=arguments.fd))
        inputs, outputs = Mapping(arguments.inputs), Arena(arguments.outputs)
        door = socket.socket(fileno=arguments.door)
    if door is not None:
        _sockets.add(door)
    os.register_at_fork(after_in_child=_leave_to_parent)
    logging.getLogger("gemlet").addHandler(LogSender(channel))
    logging.getLogger("gemlet").setLevel(logging.INFO)
    try:
        begin = channel.receive()
        if not isinstance(begin, protocol.Begin):
            return 0  # the server is gone
        if refused:
            raise refused
        backend = backends.create(arguments.backend, begin.options)
    except BaseException as error:  # noqa: BLE001  a driver that is not there, a library that does not fit
        hint = error.hint if isinstance(error, GemletError) else None
        message = error.message if isinstance(error, GemletError) else f"{type(error).__name__}: {error}"
        channel.send(protocol.Failed(0, "refused", protocol.told(message), hint))
        return 1
    channel.send(protocol.Hello(backend.name, getattr(backend, "note", "")))
    try:
        Worker(backend, channel, inputs, outputs, door).serve()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
