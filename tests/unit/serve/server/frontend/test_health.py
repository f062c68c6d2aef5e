"""gRPC's own health checks: those who watch get news, and cost nothing without."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.serve.server.frontend import health
from tests.unit.serve.searching import comparisons


class Service:
    """Counts how often it is looked at."""

    def __init__(self):
        self.asked = 0
        self.is_ready = True

    @property
    def ready(self):
        self.asked += 1
        return self.is_ready


class Call:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(b"".join(message))


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(health, "LOOK_S", 0.001)


async def watching(service, calls):
    watch = health.procedures(service, "name")["Watch"]
    tasks = [asyncio.create_task(watch(call, b"")) for call in calls]
    await until(lambda: all(call.sent for call in calls))
    return tasks


async def ended(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_all_who_watch_take_one_look_together():
    async def run():
        service = Service()
        tasks = await watching(service, [Call() for _ in range(500)])
        service.asked = 0
        await until(lambda: service.asked >= 20)
        assert service.asked < 100
        await ended(tasks)
        service.asked = 0
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert service.asked == 0  # nobody watches any more

    asyncio.run(run())


def test_news_come_to_all_who_watch_and_once():
    async def run():
        service, calls = Service(), [Call() for _ in range(3)]
        tasks = await watching(service, calls)
        service.is_ready = False
        await until(lambda: all(len(call.sent) == 2 for call in calls))
        await ended(tasks[:1])
        service.is_ready = True
        await until(lambda: all(len(call.sent) == 3 for call in calls[1:]))
        await ended(tasks[1:])
        return calls

    gone, *others = asyncio.run(run())
    assert gone.sent == [b"\x08\x01", b"\x08\x02"]
    assert [call.sent for call in others] == [[b"\x08\x01", b"\x08\x02", b"\x08\x01"]] * 2


def test_thousands_who_watch_end_together_in_little_time(monkeypatch):
    """Nobody is looked for among all others: with 64,000 who watch, that took the server eleven seconds."""
    monkeypatch.setattr(health, "LOOK_S", 3600.0)

    async def run():
        watch = health.procedures(Service(), "name")["Watch"]
        return await comparisons(lambda: watch(Call(), b""), 200)

    assert asyncio.run(run()) < 10 * 200


def test_who_watches_a_service_that_there_is_not_is_told_so():
    async def run():
        call = Call()
        task = asyncio.create_task(health.procedures(Service(), "name")["Watch"](call, b"\n\x05other"))
        await until(lambda: call.sent)
        assert not task.done()
        await ended([task])
        return call.sent

    assert asyncio.run(run()) == [b"\x08\x03"]
