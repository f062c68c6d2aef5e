"""How often a status is built when many ask, and which request gets which."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.daemon import shared_status
from gemlet.daemon.shared_status import SharedStatus


class Daemon:
    """Counts what is built; the document is the number."""

    def __init__(self) -> None:
        self.built = self.rendered = self.events = 0
        self.shared = SharedStatus(build=self.build, event=lambda: self.events, metrics=self.render)  # type: ignore[arg-type]

    async def build(self) -> dict[str, int]:
        await asyncio.sleep(0)
        self.built += 1
        return {"number": self.built}

    def render(self, status) -> str:
        self.rendered += 1
        return str(status["number"])


@pytest.fixture
def hour(monkeypatch):
    monkeypatch.setattr(shared_status, "SECONDS", 3600.0)


def test_requests_of_one_look_share_a_document(hour):
    async def ask() -> None:
        daemon = Daemon()
        documents = await asyncio.gather(*(daemon.shared.get() for _ in range(50)))
        assert {id(document) for document in documents} == {id(await daemon.shared.get())}
        assert {(bytes(document.json), document.metrics) for document in documents} == {(b'{"number":1}', "1")}
        assert (daemon.built, daemon.rendered) == (1, 1)

    asyncio.run(ask())


def test_a_later_look_is_another(monkeypatch):
    monkeypatch.setattr(shared_status, "SECONDS", 0.0)

    async def ask() -> None:
        daemon = Daemon()
        await daemon.shared.get()
        await asyncio.sleep(0.01)
        assert (await daemon.shared.get()).status == {"number": 2}

    asyncio.run(ask())


def test_who_asks_after_an_event_waits_for_the_next_look():
    async def ask() -> None:
        daemon, loop = Daemon(), asyncio.get_running_loop()
        begin = loop.time()
        await daemon.shared.get()
        daemon.events = 7
        documents = await asyncio.gather(*(daemon.shared.get() for _ in range(50)))
        assert {document.event for document in documents} == {7}
        assert daemon.built == 2
        assert loop.time() - begin >= shared_status.SECONDS
        assert (await daemon.shared.get(anew=True)).status == {"number": 3}

    asyncio.run(ask())


def test_a_document_that_takes_long_is_built_half_of_the_time(monkeypatch):
    monkeypatch.setattr(shared_status, "SECONDS", 0.0)
    now, processor = [0.0], [0.0]

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now[0])
        monkeypatch.setattr(shared_status.time, "thread_time", lambda: processor[0])
        daemon = Daemon()
        build, slept = daemon.shared._build, []

        async def slow():
            now[0] += 50.0  # most of it others had the processor
            processor[0] += 5.0
            return await build()

        async def sleep(seconds):
            slept.append(seconds)
            now[0] += seconds

        daemon.shared._build = slow
        monkeypatch.setattr(shared_status.asyncio, "sleep", sleep)
        for _ in range(3):
            daemon.events += 1
            await daemon.shared.get()
        assert [seconds for seconds in slept if seconds] == [5.0, 5.0]

    asyncio.run(ask())


def test_who_gave_up_keeps_nobody_from_a_document(hour):
    async def ask() -> None:
        daemon = Daemon()
        waiting = [asyncio.ensure_future(daemon.shared.get()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert (await waiting[1]).status == (await waiting[2]).status == {"number": 1}

    asyncio.run(ask())


def test_others_have_their_turns_between_the_steps_of_a_document():
    turns = []

    def steps():
        for number in range(3):
            turns.append(number)
            yield
        return "built"

    async def other() -> None:
        while len(turns) < 6:
            turns.append("other")
            await asyncio.sleep(0)

    async def both() -> None:
        beside = asyncio.ensure_future(other())
        assert await shared_status.in_steps(steps()) == "built"
        await beside

    asyncio.run(both())
    assert turns == [0, "other", 1, "other", 2, "other"]
