"""A call ends with its stream, be it that the client ended that, or the library for what the client did wrong."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from tests.unit.serve.server.frontend.test_grpc_bytes import HEADER, PREFACE, frame
from tests.unit.serve.stand_in import Service, Transport

LENGTH_OF_ONE = b"\x0f\x0d\x011"  # of HPACK: content-length: 1, without an index
WRONG = {
    "a second header that is no trailer": lambda stream: frame(1, 4, stream, HEADER) + frame(1, 4, stream, HEADER),
    "more than its content-length": lambda stream: (
        frame(1, 4, stream, HEADER + LENGTH_OF_ONE) + frame(0, 0, stream, bytes(2))
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("reads", [True, False])
def test_nothing_is_kept_of_calls_whose_client_breaks_the_protocol(wrong, reads):
    async def run():
        connection, transport = GrpcConnection(GrpcServer(Service())), Transport()
        connection.connection_made(transport)
        connection.data_received(PREFACE)
        if not reads:
            connection.pause_writing()
        for stream in range(1, 2001, 2):
            connection.data_received(wrong(stream))
            if not reads and stream % 32 == 1:  # the end of a stream is told to the client before it is over
                connection.resume_writing()
                connection.pause_writing()
        if not reads:
            connection.resume_writing()
        assert not transport.closed
        assert connection.idle
        assert connection.began is None  # and nothing is due from the client
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_request_is_not_run_whose_stream_the_library_has_ended():
    ended = []

    class Counted:
        quiet = full = False
        kept_bytes = 0

        def __init__(self, call):
            pass

        def message(self, data, encoding):
            pass

        def gone(self):
            ended.append(self)

    async def run():
        server = GrpcServer(Service())
        server.procedures = dict.fromkeys(server.procedures, Counted)
        connection = GrpcConnection(server)
        connection.connection_made(Transport())
        connection.data_received(PREFACE)
        connection.data_received(frame(1, 4, 1, HEADER) + frame(0, 0, 1, bytes(5)) + frame(1, 4, 1, HEADER))
        assert len(ended) == 1
        connection.connection_lost(None)
        assert len(ended) == 1

    asyncio.run(run())
