"""What is of all models is made once for all who ask for them meanwhile, and not without end."""

from __future__ import annotations

import asyncio
from unittest import mock

import looptime
import pytest

from gemlet.serve.server.frontend.grpc_procedures import Procedures
from gemlet.serve.server.frontend.shared_text import REST, SharedText, SharedTexts
from tests.unit.serve.searching import comparisons
from tests.unit.serve.stand_in import Service, connect, replies

TOOK_S = 0.5


class World:
    """Time is the loop's, and making a text takes TOOK_S of it for others, who do not see it pass."""

    def __init__(self):
        self.made = 0
        self.late = 0.0
        self.begun = []
        self.shared = SharedText(self.make, lambda: asyncio.get_running_loop().time() + self.late)

    def make(self):
        self.begun.append(asyncio.get_running_loop().time() + self.late)
        self.late += TOOK_S
        self.made += 1
        return b"%d" % self.made


def run(scenario):
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.close()


def test_all_who_ask_at_once_have_the_same():
    async def scenario():
        world = World()
        return await asyncio.gather(*(world.shared.text() for _ in range(100)))

    assert run(scenario()) == [b"1"] * 100


def test_who_asks_later_has_what_is_so_then_and_waits_a_while_for_it():
    async def scenario():
        world = World()
        found = [await world.shared.text() for _ in range(3)]
        return found, [later - before for before, later in zip(world.begun, world.begun[1:], strict=False)]

    found, between = run(scenario())
    assert found == [b"1", b"2", b"3"]
    assert all(each >= (1 + REST) * TOOK_S for each in between)


def test_one_who_asked_has_it_in_each_turn_of_the_loop():
    """To write half a megabyte for 1500 clients took 0.3 s, in which others waited."""

    async def scenario():
        shared, told = SharedText(lambda: b"text"), []
        asking = [asyncio.create_task(shared.text()) for _ in range(20)]
        for number, task in enumerate(asking):
            task.add_done_callback(lambda _, number=number: told.append(number))
        most = 0
        await asyncio.sleep(0)
        asking[5].cancel()
        while len(told) < len(asking):
            before = len(told)
            await asyncio.sleep(0)
            most = max(most, len(told) - before)
        return most, [number for number in told if number != 5]

    assert run(scenario()) == (1, [*range(5), *range(6, 20)])


def test_nothing_is_made_for_who_has_gone():
    async def scenario():
        world = World()
        asking = asyncio.create_task(world.shared.text())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(1)
        made = world.made
        return made, await world.shared.text()

    assert run(scenario()) == (0, b"1")


def test_an_error_is_told_to_all_who_asked():
    def fail():
        raise ValueError("no text")

    async def scenario():
        shared = SharedText(fail)
        return await asyncio.gather(shared.text(), shared.text(), return_exceptions=True)

    assert [str(each) for each in run(scenario())] == ["no text"] * 2


def test_thousands_who_ask_end_together_in_little_time():
    async def scenario():
        world = World()
        await world.shared.text()
        return await comparisons(world.shared.text, 200)

    assert run(scenario()) < 10 * 200


ALL_MODELS = ("GET /metrics", "GET /v2", "GET /v2/health", "GET /v2/models/stats", "POST /v2/repository/index")
PROCEDURES = ("ModelStatistics", "RepositoryIndex")


class Counting(Service):
    """Counts how often something is made of all models."""

    def __init__(self):
        super().__init__()
        self.made = 0
        service = self

        class Counted(type(self.engine.models)):
            def values(self):
                service.made += 1
                return super().values()

        self.engine.models.__class__ = Counted

    def index(self):
        self.made += 1
        return super().index()

    def runs_on(self):
        self.made += 1
        return super().runs_on()


@pytest.mark.parametrize("asked", ALL_MODELS)
def test_what_is_of_all_models_is_made_once_for_all_who_ask_at_once(asked):
    async def scenario(clients):
        service = Counting()
        transports = []
        for _ in range(clients):
            connection, transport = connect(service)
            connection.data_received(f"{asked} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode())
            transports.append(transport)
        while not all(transport.written for transport in transports):  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.1)
        assert {status for each in transports for status, _, _ in replies(each.written)} == {200}
        return service.made

    assert run(scenario(5)) == run(scenario(1)) > 0


@pytest.mark.parametrize("name", PROCEDURES)
def test_it_is_made_once_for_all_who_ask_over_grpc(name):
    async def scenario(clients):
        service = Counting()
        calls = [mock.Mock() for _ in range(clients)]
        procedures = Procedures(service)
        await asyncio.gather(*(procedures(name, call, b"") for call in calls))
        for call in calls:
            ((answer,),) = call.respond.call_args.args
            assert b"echo" in answer
        return service.made

    assert run(scenario(5)) == run(scenario(1)) > 0


def test_each_text_has_its_own_part_of_the_time():
    async def scenario():
        texts = SharedTexts(Service())
        world = World()
        long = await asyncio.gather(texts.of(lambda _: world.make()), texts.of(lambda _: b"short"))
        return long, await texts.of(lambda service: b"%d" % len(service.engine.models))

    assert run(scenario()) == ([b"1", b"short"], b"1")
