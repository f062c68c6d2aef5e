"""Who is answered when many ask: nobody's requests, connections or answers shut another user out."""

from __future__ import annotations

import asyncio
import json
import typing

import msgspec
import pytest

from gemlet.daemon import protocol, requests
from gemlet.daemon.answer_order import AnswerOrder
from gemlet.daemon.api import Api
from gemlet.daemon.processes import Peer

ANA, LUIS = 70001, 70002
PING, STATUS = b'{"v":1,"op":"ping"}\n', b'{"v":1,"op":"status"}\n'
EVENTS = b'{"v":1,"op":"events"}\n'


def test_users_take_turns_one_a_turn_of_the_loop():
    async def live() -> list[int]:
        turns, order, passes = AnswerOrder(), [], [0]

        async def ask(uid: int) -> None:
            await turns.take(uid)
            order.append((uid, passes[0]))

        def count() -> None:
            passes[0] += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        await asyncio.gather(*(ask(ANA) for _ in range(5)), ask(LUIS), ask(0), ask(LUIS))
        assert len({at for _, at in order}) == len(order)
        return [uid for uid, _ in order]

    assert asyncio.run(live()) == [ANA, LUIS, 0, ANA, LUIS, ANA, ANA, ANA]


def test_who_took_long_rests_and_nobody_else():
    async def live() -> None:
        turns = AnswerOrder()
        turns.rest(ANA, 0.05)
        resting = asyncio.ensure_future(turns.take(ANA))
        for _ in range(3):
            await turns.take(LUIS)
        assert not resting.done()
        gone = asyncio.ensure_future(turns.take(LUIS))
        gone.cancel()
        await resting
        await turns.take(LUIS)

    asyncio.run(live())


@pytest.fixture
def asked_as(monkeypatch):
    """Uids of the connections to come, in order."""
    uids: list[int] = []
    monkeypatch.setattr("gemlet.daemon.api.caller", lambda _, **__: Peer(pid=1, uid=uids.pop(0)))
    return uids


def test_requests_that_have_arrived_already_do_not_go_before_those_of_others(tmp_path, asked_as):
    order = []

    async def handle(_request, peer):
        order.append(peer.uid)

    async def live() -> None:
        async with Api(handle).serve(tmp_path / "api", mode=0o600):
            asked_as[:] = [ANA, LUIS]
            (_, many), (reader, few) = [await asyncio.open_unix_connection(tmp_path / "api") for _ in range(2)]
            many.write(PING * 3000)
            few.write(PING)
            assert await reader.readline()
            many.close()
            few.close()

    asyncio.run(live())
    assert order.index(LUIS) < 100


# What these answer does not grow with what users make. Add to them only what cannot.
SMALL = {"environment", "join", "note", "ping", "remove", "set", "share", "shutdown", "take_over"}
KINDS = {kind.__struct_config__.tag: kind for kind in typing.get_args(requests.AnyRequest)}
FIELDS = {"group": "g", "limits": {}, "socket": "/s", "topic": "t", "text": "t"}


def test_every_kind_of_request_is_here():
    assert KINDS.keys() > SMALL | {"status", "trace"}


@pytest.mark.parametrize("op", sorted(KINDS))
def test_an_answer_is_large_unless_it_is_known_to_be_small(tmp_path, asked_as, op):
    made, goes_on = asyncio.Event(), asyncio.Event()
    waiting = []

    async def handle(request, _peer):
        if isinstance(request, requests.Status):
            made.set()
            await goes_on.wait()
        waiting.append(request)

    needed = {field.name for field in msgspec.structs.fields(KINDS[op]) if field.required} - {"v"}
    request = {"v": 1, "op": op} | {name: FIELDS[name] for name in needed}

    async def live() -> None:
        async with Api(handle).serve(tmp_path / "api", mode=0o600):
            asked_as[:] = [ANA, ANA, LUIS]
            connections = [await asyncio.open_unix_connection(tmp_path / "api") for _ in range(3)]
            connections[0][1].write(STATUS)
            await made.wait()
            line = json.dumps(request).encode() + b"\n"
            connections[1][1].write(line if op != "status" else EVENTS)
            if op in SMALL:
                assert await connections[1][0].readline()
            else:  # that of another user comes before, however often
                for _ in range(20):
                    connections[2][1].write(PING)
                    assert await connections[2][0].readline()
                assert all(isinstance(other, requests.Ping) for other in waiting)
            goes_on.set()
            assert await connections[0][0].readline()
            assert op in SMALL or await connections[1][0].readline()
            for _, writer in connections:
                writer.close()

    asyncio.run(live())


def test_a_user_has_one_large_answer_at_a_time(tmp_path, asked_as):
    made = []

    async def answer(reader):  # which takes no more from the socket than it is asked for
        line = b""
        while not line.endswith(b"\n"):
            line += await reader.read(1 << 20)
        return json.loads(line)["ok"]

    async def handle(_request, peer):
        made.append(peer.uid)
        return "x" * (4 << 20)  # more than a socket takes from one who does not read

    async def live() -> None:
        async with Api(handle).serve(tmp_path / "api", mode=0o600):
            asked_as[:] = [ANA] * 5 + [LUIS, ANA]
            connections = [await asyncio.open_unix_connection(tmp_path / "api") for _ in range(7)]
            for _, writer in connections[:5]:
                writer.write(STATUS)
            connections[5][1].write(STATUS)  # that of another user comes
            assert await answer(connections[5][0])
            connections[6][1].write(PING)  # and so does a small one
            assert await answer(connections[6][0])
            assert made.count(ANA) == 2  # one status and the ping
            for reader, _ in connections[:5]:
                assert await answer(reader)
            for _, writer in connections:
                writer.close()

    asyncio.run(live())
    assert made.count(ANA) == 6


def test_an_answer_that_nobody_can_read_is_not_sent(tmp_path, asked_as, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_REPLY_BYTES", 1000)

    async def handle(_request, _peer):
        return "x" * 1000

    async def live() -> bytes:
        async with Api(handle).serve(tmp_path / "api", mode=0o600):
            asked_as[:] = [0]
            reader, writer = await asyncio.open_unix_connection(tmp_path / "api")
            writer.write(STATUS)
            line = await reader.readline()
            writer.close()
            return line

    answer = msgspec.json.decode(asyncio.run(live()))
    assert not answer["ok"]
    assert "ask for less" in answer["error"]["hint"]
