"""Messages between server and executor: msgpack over a socket pair, each message after its length in four bytes.

A gpu-let on the same machine has a socket of its own, its lane, on which its thread gets Run and answers: no other
thread is in between. The executor gets its end through the door, a socket for descriptors, and ends the thread where
the server has closed its end. Everything else, and Run where there is no lane, goes by the socket of all.

Tensors lie in two arenas of shared memory, one that only the server allocates from (inputs) and one that only the
executor does (outputs). The reader says when it is done: the server by Release, the executor by Done or Failed. What
finds no room in an arena travels inside the message, and so does what is small: a place costs more than a copy then,
and a Release wakes up the executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from gemlet.decoding import msgpack_decoder
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.models.specification import ModelError, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.inference_protocol.tensors import Buffer

LENGTH_BYTES = 4
MAX_MESSAGE = 1 << 31
# Bytes of tensors in a message, for which the server does nothing else: of outputs, for which the arena has no room, of
# a request of a model to another one, and of its answer.
MAX_OUTPUTS = MAX_NESTED = 256 * 1024**2
SMALL_BYTES = 4096  # tensors of so many bytes travel in the message


class ArenaTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in an arena at ``offset``, or, where that is -1, ``inline``.

    of_rows: the bytes of each row of an output of BYTES, by which the server parts a batch.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    inline: bytes = b""
    of_rows: tuple[int, ...] = ()


class Begin(msgspec.Struct, frozen=True, tag="begin", array_like=True):
    """The first message: what the backend is created with. A command line has no room for it: 128 KiB an argument."""

    options: BackendOptions


class Load(msgspec.Struct, frozen=True, tag="load", array_like=True):
    ticket: int
    model: ModelSpec


class Unload(msgspec.Struct, frozen=True, tag="unload", array_like=True):
    ticket: int
    model: str


class Partition(msgspec.Struct, frozen=True, tag="partition", array_like=True):
    """lanes: gpu-lets whose sockets lie at the door, in this order."""

    ticket: int
    gpu_lets: tuple[GpuLet, ...]
    lanes: tuple[str, ...] = ()


class Ping(msgspec.Struct, frozen=True, tag="ping", array_like=True):
    """Finished answers it, once all orders before it are carried out."""

    ticket: int


class RequestInfo(msgspec.Struct, frozen=True, array_like=True):
    """One request of a batch, for models that get requests, not batches. ``outputs``: those asked for; none: all."""

    rows: int
    id: str = ""
    outputs: tuple[str, ...] = ()
    timeout_us: int = 0
    parameters: str = ""  # JSON


class Nesting(msgspec.Struct, frozen=True, array_like=True):
    """Where a batch stands among those that wait for each other. batch: its number; 0: its model asks no others.

    chain: the names of the models that wait for it, the outermost first, and its own. beside: it runs beside the
    batches of its gpu-let, all of which wait, in a thread of its own.
    """

    batch: int = 0
    chain: tuple[str, ...] = ()
    beside: bool = False


OUTERMOST, BESIDE = Nesting(), Nesting(beside=True)


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True):
    ticket: int
    gpu_let: str
    model: str
    rows: int
    inputs: tuple[ArenaTensor, ...]
    requests: tuple[RequestInfo, ...] = ()
    nesting: Nesting = OUTERMOST


class Reply(msgspec.Struct, frozen=True, tag="reply", array_like=True):
    """What became of an Ask: all outputs ``inline``, or the error."""

    number: int
    outputs: tuple[ArenaTensor, ...] = ()
    error: str | None = None


class Release(msgspec.Struct, frozen=True, tag="release", array_like=True):
    """The server has read these outputs."""

    offsets: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    pass


class Hello(msgspec.Struct, frozen=True, tag="hello", array_like=True):
    """The backend is there; ``note`` is a few words on what it runs on."""

    backend: str
    note: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded", array_like=True):
    ticket: int
    memory: int


class Finished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """Unload, Partition or Ping was carried out, in this many milliseconds.

    slower: of the gpu-lets of now, what runs without the CUDA graphs it should have, a line each: where and why.
    """

    ticket: int
    ms: float
    slower: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """``ms``: the backend's run() alone."""

    ticket: int
    outputs: tuple[ArenaTensor, ...]
    ms: float


class FailedRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A response that is an error; ``code``: what Triton's API calls it, such as INVALID_ARG."""

    message: str
    code: str


class Answers(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The outputs of one request."""

    outputs: tuple[ArenaTensor, ...]


Answer = Answers | FailedRequest


class DoneEach(msgspec.Struct, frozen=True, tag="each", array_like=True):
    """As Done, of a model that answers its requests one by one: in the order of the batch."""

    ticket: int
    answers: tuple[Answer, ...]
    ms: float


class Ask(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    """A request of a model to another one; ``inputs`` inline. A Reply of that number answers it.

    timeout_us: 0 = none. batch: the number of the one that the model is at. chain: the models that wait, this one last.
    """

    number: int
    model: str
    version: str
    inputs: tuple[ArenaTensor, ...]
    timeout_us: int
    batch: int = 0
    chain: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """The model that asked this does not wait for the answer any more."""

    number: int


Kind = Literal["model", "gone", "refused", "crash"]


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """model: ModelError; gone: the gpu-let is not there any more; refused: no such backend; crash: anything else."""

    ticket: int
    kind: Kind
    message: str
    hint: str | None = None


class Log(msgspec.Struct, frozen=True, tag="log", array_like=True):
    level: int
    logger: str
    line: str


ToExecutor = Begin | Load | Unload | Partition | Ping | Run | Release | Reply | Stop
ToServer = Hello | Loaded | Finished | Done | DoneEach | Failed | Ask | Cancel | Log
TEXT_CHARACTERS = 8192
_encoder = msgspec.msgpack.Encoder()
to_executor = msgpack_decoder(ToExecutor)
to_server = msgpack_decoder(ToServer)


def told(text: str) -> str:
    """What a model says as it can be sent: of bounded length, and without halves of characters, which are in names of
    files that are not UTF-8."""
    if len(text) > TEXT_CHARACTERS:
        text = text[:TEXT_CHARACTERS] + "..."
    return text.encode(errors="backslashreplace").decode()


def check_outputs(nbytes: int) -> None:
    """Raises ModelError where outputs of so many bytes find no room in a message."""
    if nbytes > MAX_OUTPUTS:
        raise ModelError(f"outputs of {nbytes} bytes have no room: expected at most {MAX_OUTPUTS}")


def frame(message: ToExecutor | ToServer) -> bytes:
    """The message with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def reply_in_pieces(number: int, outputs: Sequence[ArenaTensor], data: Sequence[Buffer]) -> list[Buffer]:
    """The frame of a Reply with these outputs, each of which has this data ``inline``: pieces to be copied without the
    interpreter's lock, which the encoder holds."""
    begun = _encoder.encode(Reply(number))[: -len(_NO_OUTPUTS)]
    pieces: list[Buffer] = [begun + b"\xdd" + len(outputs).to_bytes(4, "big")]
    for tensor, inline in zip(outputs, data, strict=True):
        pieces += [
            _encoder.encode(tensor)[: -len(_NOTHING_INLINE)] + b"\xc6" + len(inline).to_bytes(4, "big"),
            inline,
            _NO_ROWS,
        ]
    pieces.append(_NO_ERROR)
    return [sum([len(piece) for piece in pieces]).to_bytes(LENGTH_BYTES, "little"), *pieces]


_NO_ERROR, _NO_ROWS = _encoder.encode(None), _encoder.encode(())
_NO_OUTPUTS, _NOTHING_INLINE = _encoder.encode(()) + _NO_ERROR, _encoder.encode(b"") + _NO_ROWS
