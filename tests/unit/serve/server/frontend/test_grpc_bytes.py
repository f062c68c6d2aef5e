"""A connection of gRPC is given anything: it ends what is wrong, raises nothing, and keeps nothing when it is over."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.limits import Limits
from tests.unit.serve.stand_in import Service, Transport

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# Of HPACK: POST, http, a path, an authority, content-type application/grpc, without an index.
HEADER = (
    b"\x83\x86\x04\x2a/inference.GRPCInferenceService/ModelInfer\x01\x04here\x0f\x10\x10application/grpc"
)  # fmt: skip


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


streams = st.integers(0, 9)
messages = st.builds(
    lambda flag, length, data: bytes([flag]) + length.to_bytes(4, "big") + data,
    st.integers(0, 255), st.integers(0, 40) | st.integers(0, 2**32 - 1), st.binary(max_size=40),
)  # fmt: skip
frames = st.one_of(
    st.builds(frame, st.just(1), st.sampled_from([4, 5]), st.integers(0, 4).map(lambda n: 2 * n + 1), st.just(HEADER)),
    st.builds(frame, st.just(0), st.integers(0, 1), streams, messages),
    st.builds(frame, st.integers(0, 10), st.integers(0, 255), streams, st.binary(max_size=60)),
    st.binary(max_size=30),
)


@given(st.lists(st.lists(frames, max_size=6), max_size=6), st.booleans())
def test_whatever_comes(writes, behind):
    async def run():
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        server = GrpcServer(Service(), Limits(request_bytes=64))
        connection, transport = GrpcConnection(server), Transport()
        connection.connection_made(transport)
        connection.data_received(PREFACE)
        for number, each in enumerate(writes):
            if transport.closed:
                break
            if behind and number == 1:
                connection.pause_writing()
            connection.data_received(b"".join(each))
            await asyncio.sleep(0)
        if behind and not transport.closed:
            connection.resume_writing()
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert raised == []
        assert not server.connections
        assert server.holdings.total == 0

    asyncio.run(run())


def test_the_header_is_one_that_is_answered():
    """Else the test above tries nothing."""

    async def run():
        server = GrpcServer(Service())
        connection, transport = GrpcConnection(server), Transport()
        connection.connection_made(transport)
        connection.data_received(PREFACE + frame(1, 4, 1, HEADER) + frame(0, 1, 1, bytes(5)))
        await asyncio.sleep(0)
        connection.connection_lost(None)
        return bytes(transport.written)

    written, kinds = asyncio.run(run()), []
    while written:
        kinds.append((written[3], int.from_bytes(written[5:9], "big")))
        written = written[9 + int.from_bytes(written[:3], "big") :]
    assert (1, 1) in kinds  # a header for the first call
