"""A client that sends no more and waits for its answer has it; one that has gone is asked for nothing any more."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.serve.dispatch.call import Answered, Tensor
from gemlet.serve.server.frontend.http_server import HttpServer
from tests.unit.serve.server.frontend.test_http import BINARY, infer
from tests.unit.serve.stand_in import Service, model, replies

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class Slow(Service):
    """Answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.calls, self.cancelled = [], []
        self.engine.infer = self.calls.append
        self.engine.cancel = self.cancelled.append

    def answer(self):
        self.calls[0].answer(Answered(model(), [Tensor("Y", "FP32", (1, 1), b"\0\0\0\0")]))


def with_client(kind, tmp_path, act):
    """Runs ``act`` of a service and a client that has asked once."""

    async def run():
        service = Slow()
        server = HttpServer(service)
        if kind == "tcp":
            reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
        else:
            await server.listen_at(str(tmp_path / "socket"))
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        async with asyncio.timeout(20):
            writer.write(infer([1.0], **BINARY))
            await until(lambda: service.calls)
            await act(service, reader, writer)
            await until(lambda: not server.connections)
        writer.close()
        await server.close()

    asyncio.run(run())


async def until(holds):
    while not holds():  # noqa: ASYNC110  nothing tells
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_client_that_sends_no_more_has_its_answer(kind, tmp_path):
    async def act(service, reader, writer):
        writer.write(b"POST /v2/models/echo")  # which is never finished
        writer.write_eof()
        await asyncio.sleep(0.3)  # several looks
        assert not service.cancelled
        service.answer()
        answer = await reader.read()
        assert answer.startswith(INTERIM)
        ((status, headers, _),) = replies(answer.removeprefix(INTERIM))
        assert (status, headers["Connection"]) == (200, "close")

    with_client(kind, tmp_path, act)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_request_whose_client_has_gone_is_not_run(kind, tmp_path):
    async def act(service, _reader, writer):
        writer.close()
        await until(lambda: service.cancelled)

    with_client(kind, tmp_path, act)


def test_a_client_without_interim_answers_that_sends_no_more_has_gone(tmp_path):
    async def act(service, _reader, writer):
        writer.write(b"GET /v2 HTTP/1.0\r\n\r\n")
        writer.write_eof()
        await until(lambda: service.cancelled)

    with_client("tcp", tmp_path, act)
