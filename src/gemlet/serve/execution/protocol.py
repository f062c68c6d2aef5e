"""Messages between server and executor: msgpack over a socket pair, each message after its length in four bytes.

Tensors lie in two arenas of shared memory, one that only the server allocates from (inputs) and one that only the
executor does (outputs). The reader says when it is done: the server by Release, the executor by Done or Failed. What
finds no room in an arena travels inside the message.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.models.specification import ModelSpec

LENGTH_BYTES = 4
MAX_MESSAGE = 1 << 31


class ArenaTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in an arena at ``offset``, or, where that is -1, ``inline``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    inline: bytes = b""


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
    ticket: int
    gpu_lets: tuple[GpuLet, ...]


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True):
    ticket: int
    gpu_let: str
    model: str
    rows: int
    inputs: tuple[ArenaTensor, ...]


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
    """Unload or Partition was carried out, in this many milliseconds.

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


ToExecutor = Begin | Load | Unload | Partition | Run | Release | Stop
ToServer = Hello | Loaded | Finished | Done | Failed | Log
_encoder = msgspec.msgpack.Encoder()
to_executor = msgspec.msgpack.Decoder(ToExecutor)
to_server = msgspec.msgpack.Decoder(ToServer)


def frame(message: ToExecutor | ToServer) -> bytes:
    """The message with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
