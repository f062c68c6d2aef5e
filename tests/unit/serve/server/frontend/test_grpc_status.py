"""The status message of a gRPC answer fits into the headers that clients take, whatever it says."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import grpc_wire
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.grpc_wire import MESSAGE_BYTES, Status
from tests.unit.serve.stand_in import Service

CLIENT_BYTES = 8192  # of headers in all, by default, of which each takes 32 more than it has


def message_of(header):
    return dict(header).get(b"grpc-message", b"")


@given(st.text(st.characters(), max_size=200), st.integers(1, 200))
def test_any_message_fits_and_is_cut_after_a_character(text, times):
    message = text * times
    header = grpc_wire.refused(Refusal("invalid", message, retry_s=30))
    assert sum(len(name) + len(value) + 32 for name, value in [*grpc_wire.HEAD, *header]) < CLIENT_BYTES
    sent = unquote_to_bytes(message_of(header)).decode()
    wanted = message.encode(errors="backslashreplace").decode()
    if sent != wanted:
        assert sent.endswith("...")
        assert wanted.startswith(sent[:-3])
        assert len(message_of(header)) > MESSAGE_BYTES - 40, "as much of it as fits"


def test_a_message_of_any_length_costs_what_is_sent_of_it(monkeypatch):
    seen = []
    encoded = grpc_wire._percent_encoded
    monkeypatch.setattr(grpc_wire, "_percent_encoded", lambda text: seen.append(len(text)) or encoded(text))
    grpc_wire.trailers(Status.UNKNOWN, "ä" * 10_000_000)
    assert sum(seen) < 3 * MESSAGE_BYTES


@pytest.mark.parametrize("message", ["x" * 100_000, "ä€" * 50_000, "bad \udcff name"], ids=["long", "wide", "half"])
def test_a_client_learns_status_and_message(message):
    class Refusing:
        quiet = full = False

        def __init__(self, call):
            self.call = call

        def message(self, _data, _encoding):
            self.call.refuse(Refusal("failed", message))

        def ended(self):
            pass

        sent = gone = ended

    async def run():
        server = GrpcServer(Service())
        server.procedures = {b"/s/m": Refusing}
        listener = await asyncio.get_running_loop().create_server(lambda: GrpcConnection(server), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/s/m")(b"x", timeout=60)
            return caught.value
        finally:
            listener.close()
            while server.connections:
                for connection in list(server.connections):
                    connection.abort()
                await asyncio.sleep(0)

    error = asyncio.run(run())
    assert error.code() in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
    assert error.details()[:3] == message[:3]


def test_a_message_within_a_stream_is_cut_too():
    assert grpc_wire.shortened("short") == "short"
    assert grpc_wire.shortened("x" * MESSAGE_BYTES) == "x" * MESSAGE_BYTES
    assert grpc_wire.shortened("x" * 10_000_000) == "x" * (MESSAGE_BYTES - 3) + "..."
    assert grpc_wire.shortened("\udcff") == "\\udcff"
