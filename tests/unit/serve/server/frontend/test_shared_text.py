"""The metrics are made once for all who ask for them meanwhile, and not without end."""

from __future__ import annotations

import asyncio

import looptime

from gemlet.serve.server.frontend.shared_text import REST, SharedText
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


def test_clients_get_it():
    async def scenario():
        service = Service()
        service.metrics = World().shared
        connection, transport = connect(service)
        connection.data_received(b"GET /metrics HTTP/1.1\r\n\r\n" * 2)
        while transport.written.count(b"HTTP/1.1") < 2:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.1)
        return [body for _, _, body in replies(transport.written)]

    assert run(scenario()) == [b"1", b"1"]
