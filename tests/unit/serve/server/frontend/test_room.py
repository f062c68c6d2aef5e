"""Which messages go when too many wait: never those of a peer that holds less than another."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import limits
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.limits import HELD_REQUESTS, Limits
from gemlet.serve.server.frontend.room import Room, peer_of
from tests.unit.serve.stand_in import Service

MIB = 1 << 20


def test_the_newest_of_the_peer_with_most_goes():
    gone = []
    room = Room(10)
    guests = {name: room.enter(name[0], size, lambda name=name: gone.append(name)) for name, size in (
        ("a1", 4), ("a2", 4), ("b1", 2), ("b2", 3), ("c1", 3), ("a3", 4),
    )}  # fmt: skip
    assert gone == ["a2", "b2", "a3"]
    assert room.total == 9
    for guest in guests.values():
        room.leave(guest)
    assert room.total == 0


def test_a_peer_alone_has_all_of_it():
    gone = []
    room = Room(10)
    for number in range(7):
        room.enter("a", 2, lambda number=number: gone.append(number))
    assert gone == [5, 6]


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:10.0.0.7:5000", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("ipv4:127.0.0.1:5000", "ipv4:127.0.0.1:5000"),
        ("ipv6:[::1]:5000", "ipv6:[::1]:5000"),
        ("unix:", "unix:"),
    ],
)
def test_peers_are_addresses_but_for_this_machine(name, peer):
    assert peer_of(name) == peer


class Waiting:
    """In place of processes: nothing is read until `on` is set."""

    def __init__(self):
        self.on = asyncio.Event()

    async def __call__(self, _nbytes, _act, data, *_):
        await self.on.wait()
        return data


def test_large_messages_of_one_address_leave_room_for_those_of_others():
    costly = messages.ModelInferRequest(model_name="echo")
    costly.inputs.add(name="X", datatype="FP32", shape=[1, MIB // 8]).contents.fp32_contents.extend([0.5] * (MIB // 8))
    data = costly.SerializeToString()
    assert limits.HERE_BYTES < len(data) <= MIB

    async def run():
        service = Service()
        service.unpacking = Waiting()
        server = GrpcServer(service, Limits(request_bytes=MIB))
        most = HELD_REQUESTS * MIB // len(data)
        hoarded = [asyncio.create_task(server._read(data, f"ipv4:10.0.0.1:{port}")) for port in range(most + 2)]
        other = asyncio.create_task(server._read(data, "ipv4:10.0.0.2:1"))
        for _ in range(5):
            await asyncio.sleep(0)
        service.unpacking.on.set()
        found = await asyncio.gather(*hoarded, other, return_exceptions=True)
        assert isinstance(found[-1], messages.ModelInferRequest)
        refused = [each for each in found if isinstance(each, Refusal)]
        assert [each.reason for each in refused] == ["overload"] * 3
        assert len(found) - len(refused) == most
        assert server._room.total == 0

    asyncio.run(run())
