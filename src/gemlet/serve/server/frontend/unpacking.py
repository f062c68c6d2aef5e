"""Processes that do what takes time by the size of a request: inflate, decode and encode JSON, read odd messages.

In the event loop a request of some kilobytes that inflates to half a gigabyte would stop everybody, and threads would
share the interpreter's lock with it. One process is for what is small, so that it does not wait for what is large.
What is done there is in infer_json.py, infer_messages.py and answer_form.py; how it comes there in passing.py.
"""

from __future__ import annotations

import logging
import os
import resource
import zlib
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gemlet.errors import GemletError
from gemlet.serve.dispatch import call
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.helper_process import prepare
from gemlet.serve.server.frontend import answer_form, infer_json, infer_messages, request_checks
from gemlet.serve.server.frontend.fair_turn import FairTurn
from gemlet.serve.server.frontend.own_process import Refused
from gemlet.serve.server.frontend.passing import Process
from gemlet.serve.server.to_its_end import to_its_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.answer_form import Finished, Wanted
    from gemlet.serve.server.frontend.infer_json import Asked

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
SMALL_BYTES = 1 << 20
MEMORY_BYTES = 2 << 30  # of one such process, above what it starts with; a number in JSON is some forty bytes there
NICE = 5  # those who wait for a model go first
GZIP_WINDOW = 16 + zlib.MAX_WBITS


class Unpacking:
    """Two processes, one for requests up to SMALL_BYTES and one for larger ones; each starts when it is needed."""

    def __init__(self) -> None:
        self._processes: dict[bool, Process] = {}
        self._turns = {small: FairTurn() for small in (True, False)}

    async def __call__(self, nbytes: int, act: Callable[..., Result], *given: Any, peer: str = "") -> Result:
        """What ``act``, a function of this module, gives there, when it is the peer's turn. ``nbytes``: what its time
        goes by. Raises Refusal."""
        small = nbytes <= SMALL_BYTES
        # A pool would keep what waits in it, also when nobody wants it any more.
        async with self._turns[small].of(peer):
            try:
                process = self._process(small)
            except GemletError as error:
                raise Refusal("failed", error.message) from None
            except OSError as error:
                raise Refusal("failed", f"no process can be started: {error.strerror}") from None
            try:
                result = await to_its_end(process(act, given))
            except BrokenProcessPool:  # also of submit(): the process may have been killed while it had nothing to do
                self._drop(small, process)
                raise Refusal("overload", "the process that reads large requests was killed", retry_s=1) from None
            except OSError as error:
                self._drop(small, process)
                raise Refusal("failed", f"passing on a large request failed: {error.strerror}") from None
        if isinstance(result, Refused):
            raise Refusal(result.reason, result.message)  # type: ignore[arg-type]
        return result  # type: ignore[no-any-return]

    async def inflating(
        self, peer: str, act: Callable[..., Result | None], body: Buffer, encoding: bytes, limit: int, *given: Any
    ) -> Result:
        """What ``act`` gives of a body that may be compressed: all that is to be done with it, in one turn, since what
        it inflates to would wait here for another. ``limit``: bytes of that. Raises Refusal."""
        if encoding and len(body) <= SMALL_BYTES:  # how large it is shows only there
            most = min(limit, SMALL_BYTES)
            found = await self(len(body), _unless_large, act, body, encoding, most, limit, *given, peer=peer)
            if found is not None:
                return cast("Result", found)
        nbytes = SMALL_BYTES + 1 if encoding else len(body)
        return cast("Result", await self(nbytes, act, body, encoding, limit, limit, *given, peer=peer))

    def _process(self, small: bool) -> Process:
        if small not in self._processes:
            self._processes[small] = Process(_prepare)
        return self._processes[small]

    def _drop(self, small: bool, process: Process) -> None:
        if self._processes.get(small) is process:
            del self._processes[small]
            process.close(wait=False)

    def prepare(self) -> None:
        """Takes of the system what both need beside memory. Raises GemletError."""
        for small in (True, False):
            self._process(small)

    async def warm(self) -> None:
        """Starts both, so that the first request does not wait for that. Raises GemletError."""
        self.prepare()
        for nbytes in (0, SMALL_BYTES + 1):
            try:
                await self(nbytes, _nothing)
            except Refusal as refusal:  # the first request tries again
                logger.warning("the processes that read large requests: %s", refusal.message)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()


async def check(processes: Unpacking, peer: str, texts: list[Tensor]) -> None:
    """Marks inputs of BYTES as checked. Raises Refusal."""
    for tensor in texts:
        request_checks.check_texts(tensor.name, tensor.datatype, tensor.shape)
    nbytes = sum(len(tensor.data) for tensor in texts)
    plain = [Tensor(each.name, each.datatype, each.shape, each.data) for each in texts]  # of no subclass
    await processes(nbytes, check_texts, plain, peer=peer)
    for tensor in texts:
        tensor.checked = True


async def finished(
    processes: Unpacking, peer: str, spec: ModelSpec, costly: list[tuple[Tensor, Wanted]]
) -> dict[str, Finished]:
    """What finish() gives of outputs whose data is bytes. Raises Refusal."""
    nbytes = sum(len(tensor.data) for tensor, _ in costly)
    return await processes(nbytes, finish, costly, bool(spec.max_batch), peer=peer)


def unpack(body: Buffer, encoding: bytes, most: int, limit: int, header: int | None) -> tuple[Asked, Buffer]:
    """A body over HTTP, with ``header`` bytes of JSON: the request and the tensors behind its JSON, those of BYTES
    checked. Raises Refusal; TooLarge beyond ``most`` bytes."""
    plain = inflate(body, encoding, most) if encoding else body
    end = infer_json.json_end(plain, header)
    view = memoryview(plain)
    asked = infer_json.decode(view[:end], limit)
    check_texts(request_checks.texts(infer_json.given(asked, view[end:])))
    return asked, view[end:]


def inflate(body: Buffer, encoding: bytes, limit: int) -> bytes:
    """The body as it was before gzip or deflate. Raises Refusal; TooLarge beyond ``limit`` bytes."""
    if encoding not in {b"gzip", b"deflate"}:
        raise Refusal(
            "invalid", f"content encoding {encoding.decode('latin-1')} is not supported: expected gzip or deflate"
        )
    inflater = zlib.decompressobj(GZIP_WINDOW if encoding == b"gzip" else zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise Refusal("invalid", f"the body is not {encoding.decode()}: {error}") from None
    if len(plain) > limit:
        raise TooLarge(limit)
    if not inflater.eof:
        raise Refusal("invalid", f"the body ends within its {encoding.decode()} data")
    if inflater.unused_data:
        raise Refusal("invalid", f"{len(inflater.unused_data)} bytes follow the {encoding.decode()} data of the body")
    return plain


class TooLarge(Refusal):
    """More bytes than were allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__("invalid", f"the body has more than {limit} bytes when decompressed")


def unpack_message(message: Buffer, encoding: bytes, most: int, limit: int) -> infer_messages.Divided:
    """A ModelInferRequest whose tensors are raw contents, those of BYTES checked; reading it takes no time then.

    Raises Refusal; TooLarge beyond ``most`` bytes."""
    return infer_messages.plain_message(inflate(message, encoding, most) if encoding else bytes(message), limit)


def finish(outputs: list[tuple[Tensor, Wanted]], batched: bool) -> dict[str, Finished]:
    """What is to be sent of these outputs. Raises Refusal."""
    return {tensor.name: answer_form.finish(tensor, how, batched=batched) for tensor, how in outputs}


def check_texts(inputs: list[Tensor]) -> None:
    """Raises Refusal if inputs of BYTES are not such tensors, or have too many elements."""
    for tensor in inputs:
        request_checks.check_texts(tensor.name, tensor.datatype, tensor.shape)
        call.check_bytes(tensor)


def _unless_large(act: Callable[..., Result], *given: Any) -> Result | None:
    """None: it is more than it was to be."""
    try:
        return act(*given)
    except TooLarge:
        return None


def _nothing() -> None:
    pass


def _prepare() -> None:
    prepare()
    os.nice(NICE)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            limit = 1024 * int(line.split()[1]) + MEMORY_BYTES
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            if hard != resource.RLIM_INFINITY:  # which can be lowered only
                limit = min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
