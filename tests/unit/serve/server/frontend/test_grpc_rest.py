"""Large answers over gRPC: the library gets them piece by piece, in order, and nothing of a call that has ended."""

from __future__ import annotations

import asyncio

import pytest
from ngh2 import Connection, Role
from ngh2.events import DataReceived

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.server.frontend import grpc_wire, limits
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from tests.unit.serve.stand_in import Service, Transport

NBYTES = 5 * limits.COPY_BYTES + 4
UNARY, STREAM = "ModelInfer", "ModelStreamInfer"


class Noted:
    """The library of a connection, and the most that it had to send at once."""

    def __init__(self, http):
        self.http = http
        self.most = 0

    def __getattr__(self, name):
        return getattr(self.http, name)

    def send_data(self, number, data, **more):
        self.http.send_data(number, data, **more)
        self.most = max(self.most, self.http.queued_body_size())


class Client:
    """One at the other end of a connection, in this process."""

    def __init__(self):
        self.service = Service()
        self.http = Connection(Role.CLIENT)
        self.http.initiate_connection()
        self.transport = Transport()
        self.connection = GrpcConnection(GrpcServer(self.service))
        self.connection.connection_made(self.transport)
        self.noted = self.connection._http = self.connection._rest._http = Noted(self.connection._http)

    def ask(self, procedure, *messages):
        path = f"/inference.GRPCInferenceService/{procedure}".encode()
        header = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path)]
        kind = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]  # codespell:ignore te
        number = self.http.send_request([*header, *kind])
        for message in messages:
            self.http.send_data(number, b"".join(grpc_wire.framed([message])))
        self.http.end_stream(number)
        return number

    async def exchange(self, enough=lambda _: False):
        """What comes of each stream until nothing more does, or there is enough of it."""
        came = {}
        quiet = 0
        while quiet < 3:
            sent = self.http.data_to_send()
            if sent:
                self.connection.data_received(sent)
            await asyncio.sleep(0.01 if self.connection._calls else 0)
            written, self.transport.written = bytes(self.transport.written), bytearray()
            if written:
                self.http.receive_data(written)
            for event in self.http.events():
                if isinstance(event, DataReceived):
                    came.setdefault(event.stream_id, bytearray()).extend(event.data)
            quiet = 0 if sent or written or self.connection._calls else quiet + 1
            if enough(came):
                break
        return came


def request(name, nbytes=NBYTES):
    asked = messages.ModelInferRequest(model_name="echo", id=name)
    asked.inputs.add(name="X", datatype="FP32", shape=[1, nbytes // 4])
    asked.raw_input_contents.append(name[:1].encode() * nbytes)
    return asked.SerializeToString()


def answers(data):
    found = []
    while (taken := grpc_wire.taken(bytearray(data), 2 * NBYTES)) is not None:
        found.append(bytes(taken[1]))
        data = taken[2]
    assert not data
    return found


def test_a_large_answer_is_whole_and_the_library_had_little_of_it_at_once():
    async def run():
        client = Client()
        number = client.ask(UNARY, request("a"))
        (answer,) = answers((await client.exchange())[number])
        found = messages.ModelInferResponse.FromString(answer)
        assert found.raw_output_contents == [b"a" * NBYTES]
        assert client.noted.most < 2 * limits.COPY_BYTES
        assert client.connection._rest.nbytes == client.connection._bytes == 0

    asyncio.run(run())


def test_large_and_small_answers_of_a_stream_come_whole():
    async def run():
        client = Client()
        names = ["a1", "b1", "c1"]
        number = client.ask(STREAM, request("a1"), request("b1", 4), request("c1"))
        found = [
            messages.ModelStreamInferResponse.FromString(each) for each in answers((await client.exchange())[number])
        ]
        by_id = {each.infer_response.id: each.infer_response for each in found}
        assert sorted(by_id) == names
        for name in names:
            assert set(by_id[name].raw_output_contents[0]) == {ord(name[0])}
            assert by_id[name].parameters["triton_final_response"].bool_param
        assert client.noted.most < 3 * limits.COPY_BYTES

    asyncio.run(run())


@pytest.mark.parametrize("procedure", [UNARY, STREAM])
def test_nothing_is_kept_of_an_answer_whose_client_is_gone(procedure):
    async def run():
        client = Client()
        number = client.ask(procedure, request("a"))
        await client.exchange(lambda came: came)
        assert client.connection._rest.nbytes
        client.http.reset_stream(number)
        client.connection.data_received(client.http.data_to_send())
        assert client.connection._rest.nbytes == client.connection._bytes == 0

    asyncio.run(run())
