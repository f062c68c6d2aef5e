"""The kubelet's services served and called at Unix sockets: what gRPC is, is grpclib's.

grpclib rather than grpcio, which takes 10 MB more of memory on each node, and because it takes any authority: kubelets
before 1.29 send the path of the socket, which stricter libraries refuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from google.protobuf.message import DecodeError
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.server import Server, Stream

from gemlet.kube.services import SERVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpclib.protocol import H2Protocol

END_SECONDS = 1.0  # for calls to end in, when a server stops


class CallFailed(Exception):
    """The other side refused a call, or did not answer it."""


def refuse(why: str) -> NoReturn:
    """Ends a call that is being answered: what it asks for is not possible now."""
    raise GRPCError(Status.FAILED_PRECONDITION, why)


async def call(socket: Path, service: str, name: str, request: Any, *, seconds: float) -> Any:
    """The answer of ``service``'s method ``name`` at ``socket``. Raises CallFailed."""
    asked, answered, _ = SERVICES[service][name]
    channel = Channel(path=str(socket))
    try:
        async with asyncio.timeout(seconds):
            method = UnaryUnaryMethod[Any, Any](channel, f"/{service}/{name}", asked, answered)
            return await method(request)
    except TimeoutError:
        raise CallFailed(f"{socket} has not answered within {seconds:.0f} s") from None
    except GRPCError as error:
        raise CallFailed(error.message or error.status.name) from None
    except (OSError, StreamTerminatedError, ProtocolError) as error:
        raise CallFailed(str(error)) from None
    except (DecodeError, ValueError, AssertionError, NotImplementedError) as error:
        # What grpclib raises of an answer that is no valid gRPC: a length that is wrong, compression, bad headers.
        raise CallFailed(f"its answer cannot be read: {str(error) or type(error).__name__}") from None
    finally:
        channel.close()


class RpcServer:
    """Services at one socket. ``servants``: by service, what has the methods of the same names, ``(request)``."""

    def __init__(self, servants: Mapping[str, object]) -> None:
        self._answering = 0  # calls with one answer
        self._done = asyncio.Event()
        self._done.set()
        self._server = _Server([_Servant(self._handlers(*each)) for each in servants.items()])

    async def start(self, socket: Path) -> None:
        """Raises OSError."""
        await self._server.start(path=str(socket))

    async def stop(self, seconds: float = END_SECONDS) -> None:
        """Lets calls that are being answered end within ``seconds``; then nothing more is answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()
        self._server.close()
        await self._server.wait_closed()

    def _handlers(self, service: str, servant: object) -> dict[str, Handler]:
        found = {}
        for name, (request, answer, streams) in SERVICES[service].items():
            act = getattr(servant, name)
            found[f"/{service}/{name}"] = (
                Handler(_stream(act), Cardinality.UNARY_STREAM, request, answer)
                if streams
                else Handler(self._once(act), Cardinality.UNARY_UNARY, request, answer)
            )
        return found

    def _once(self, act: Callable[[Any], Any]) -> Callable[[Stream[Any, Any]], Any]:
        async def answer(stream: Stream[Any, Any]) -> None:
            self._answering += 1
            self._done.clear()
            try:
                await stream.send_message(await act(await stream.recv_message()))
            finally:
                self._answering -= 1
                if not self._answering:
                    self._done.set()

        return answer


def _stream(act: Callable[[Any], Any]) -> Callable[[Stream[Any, Any]], Any]:
    async def answer(stream: Stream[Any, Any]) -> None:
        async with contextlib.aclosing(act(await stream.recv_message())) as messages:
            async for message in messages:
                await stream.send_message(message)

    return answer


class _Server(Server):
    """One whose connections end with it; grpclib's own go on answering their clients."""

    def __init__(self, servants: list[_Servant]) -> None:
        super().__init__(servants)
        self._connections: weakref.WeakSet[H2Protocol] = weakref.WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        self._connections.add(made)
        return made

    def close(self) -> None:
        super().close()
        for connection in list(self._connections):
            if hasattr(connection, "processor"):  # else nothing has come of it
                connection.processor.close("the server has stopped")


class _Servant:
    """As grpclib wants it."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers
