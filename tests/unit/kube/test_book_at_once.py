"""Shares that are opened, changed and closed at the same time."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest

from gemlet.errors import GemletError, Refused
from gemlet.kube import checkpoint
from gemlet.kube.book import NoRoom
from gemlet.kube.request import Amounts
from tests.unit.kube import fakes

FIRST, SECOND = fakes.FIRST, fakes.SECOND


def test_a_hundred_shares_opened_at_once_and_closed_leave_nothing(node, run):
    async def all_of_them():
        small = fakes.amounts(memory=1, compute=1)
        shares = [fakes.claim_share(f"u{n}", gpus=(FIRST if n % 2 else SECOND,), granted=small) for n in range(100)]
        await asyncio.gather(*(node.book.open(share) for share in shares))
        assert len(node.daemon.opened) == 100
        await asyncio.gather(*(node.book.close(share.id) for share in shares))

    run(all_of_them())
    assert node.leftovers() == []
    assert not node.book._queues


def test_containers_that_start_at_the_same_time_share_what_there_is(node, run, monkeypatch):
    """The kubelet says what memory units have when their containers start, and starts several at a time."""
    remove = node.daemon.remove

    async def slowly(group):
        await asyncio.sleep(0)
        await remove(group)

    monkeypatch.setattr(node.daemon, "remove", slowly)

    async def both():
        opened = [await node.book.open(fakes.unit_share(number)) for number in range(2)]
        known = [
            msgspec.structs.replace(share, group=f"default/p{number}/c", granted=fakes.amounts(memory=50, compute=10))
            for number, share in enumerate(opened)
        ]
        results = await asyncio.gather(*map(node.book.change, known), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["NoRoom", "NoneType"]
        assert sum(share.granted.memory for share in node.book.shares.values()) == 50 * 1024**3
        await node.book.restore()
        (late,) = [number for number, result in enumerate(results) if result is not None]
        assert set(node.daemon.opened) == {f"default/p{1 - late}/c", f"units-{late}"}, "it may be tried again"

    run(both())


def test_what_a_change_gives_back_is_not_given_out_before_it_is_done(node, run, monkeypatch):
    share = run(node.book.open(fakes.claim_share("u1", granted=fakes.amounts(memory=70, compute=10))))
    opening, go_on = asyncio.Event(), asyncio.Event()
    real = node.daemon.open

    async def refused(share, path, *, device):
        if share.id != "claim-u1":
            return await real(share, path, device=device)
        opening.set()
        await go_on.wait()
        raise Refused("no")

    monkeypatch.setattr(node.daemon, "open", refused)

    async def steps():
        smaller = msgspec.structs.replace(share, granted=fakes.amounts(memory=10, compute=10))
        changing = asyncio.create_task(node.book.change(smaller))
        await opening.wait()
        with pytest.raises(NoRoom):
            await node.book.open(fakes.claim_share("u2", granted=fakes.amounts(memory=20, compute=10)))
        go_on.set()
        with pytest.raises(Refused):
            await changing
        assert sum(each.granted.memory for each in node.book.shares.values()) == 70 * 1024**3

    run(steps())


def test_a_share_that_is_closed_while_it_changes_is_not_announced(node, run, monkeypatch):
    share = run(node.book.open(fakes.unit_share(0)))
    opening, go_on = asyncio.Event(), asyncio.Event()
    real = node.daemon.open

    async def slowly(share, path, *, device):
        if share.group == "default/p/c":
            opening.set()
            await go_on.wait()
        await real(share, path, device=device)

    monkeypatch.setattr(node.daemon, "open", slowly)

    async def steps():
        changing = asyncio.create_task(node.book.change(msgspec.structs.replace(share, group="default/p/c")))
        await opening.wait()
        await node.book.open(msgspec.structs.replace(fakes.unit_share(1), devices=share.devices))
        go_on.set()
        with pytest.raises((GemletError, OSError)):
            await changing
        await node.book.restore()
        assert set(node.book.shares) == {"units-1"}
        assert set(node.daemon.opened) == {"units-1"}

    run(steps())


def test_a_share_that_two_close_at_once_is_closed(node, run, monkeypatch):
    """Its pod ends, and the next one of that name is here already."""
    first, second = fakes.claim_share("u1"), fakes.claim_share("u2")
    second = msgspec.structs.replace(second, group=first.group)
    remove = node.daemon.remove

    async def slowly(group):
        await asyncio.sleep(0.01)
        await remove(group)

    async def both():
        await node.book.open(first)
        monkeypatch.setattr(node.daemon, "remove", slowly)
        await asyncio.gather(node.book.close(first.id), node.book.open(second))

    run(both())
    assert set(node.book.shares) == {second.id}


def test_a_group_that_comes_is_not_a_stranger(node, run, monkeypatch):
    """The agent looks for strangers every few seconds, and pods come when they like."""
    share = run(node.book.open(fakes.claim_share("u1")))
    opened = node.daemon.open

    async def looked_at(share, path, *, device):
        await opened(share, path, device=device)
        await node.book._remove_strangers()

    monkeypatch.setattr(node.daemon, "open", looked_at)
    run(node.book.change(msgspec.structs.replace(share, group="default/a/c")))
    assert set(node.daemon.opened) == {"default/a/c"}


def test_many_shares_at_once_are_saved_together_and_wholly(node, run, monkeypatch):
    """Each is in the checkpoint before its open returns, with far fewer writes than shares."""
    writes = []
    save = checkpoint.save

    def slow(file, shares, unaccounted):
        time.sleep(0.02)
        save(file, shares, unaccounted)
        writes.append({share.id for share in shares})

    monkeypatch.setattr(checkpoint, "save", slow)

    async def one(number):
        share = fakes.claim_share(f"u{number}", granted=Amounts(memory=fakes.GIB, compute=1, limit=1))
        await node.book.open(share)
        assert share.id in writes[-1]

    async def many():
        await asyncio.gather(*(one(number) for number in range(20)))

    run(many())
    assert len(writes) < 10
    assert len(checkpoint.load(node.path / "checkpoint.json").shares) == 20


def test_a_kubelet_that_hangs_up_spoils_no_checkpoint(node, run, monkeypatch):
    """The thread that writes cannot be cancelled: another one wrote the same file beside it, and what was there in the
    end was half of it, or what had been before."""
    save, at_work, go_on = checkpoint.save, [], threading.Event()
    most = []

    def stuck(file, shares, unaccounted):
        at_work.append(shares)
        most.append(len(at_work))
        assert go_on.wait(60)
        save(file, shares, unaccounted)
        at_work.remove(shares)

    monkeypatch.setattr(checkpoint, "save", stuck)

    async def scenario():
        first = asyncio.ensure_future(node.book.open(fakes.claim_share("u1")))
        while not at_work:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(node.book.open(fakes.claim_share("u2")))
        first.cancel()
        for _ in range(50):  # of the loop, in which a second thread would begin
            await asyncio.sleep(0.001)
        go_on.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first

    run(scenario())
    assert max(most) == 1, "one writes at a time"
    assert [share.id for share in checkpoint.load(node.path / "checkpoint.json").shares] == ["claim-u2"]


def test_a_share_that_is_closed_while_it_opens_is_not_announced(node, run, monkeypatch):
    """The kubelet gives the devices of a container that it gave up to the next one."""
    held, opened = asyncio.Event(), node.daemon.open

    async def slow(share, path, *, device):
        if share.group == "units-1":
            await held.wait()
        await opened(share, path, device=device)

    monkeypatch.setattr(node.daemon, "open", slow)

    async def scenario():
        first = asyncio.ensure_future(node.book.open(fakes.unit_share(1)))
        while "units-1" not in node.book.shares:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = msgspec.structs.replace(fakes.unit_share(2), devices=fakes.unit_share(1).devices)
        await node.book.open(other)
        held.set()
        with pytest.raises(GemletError, match="closed meanwhile"):
            await first

    run(scenario())
    assert set(node.book.shares) == set(node.daemon.opened) == {"units-2"}


def test_who_waited_for_a_share_to_close_is_alone_with_it(node, run):
    """The kubelet asks again where an answer takes long, so a claim may be given up, taken and given up at once."""
    held, at_work = asyncio.Event(), set()
    real = node.daemon.remove, node.daemon.open

    async def slowly(act, *given, **more):
        await held.wait()
        at_work.add(act)
        assert len(at_work) == 1, "one at a time"
        await asyncio.sleep(0)
        at_work.discard(act)
        return await act(*given, **more)

    async def crossing():
        await node.book.open(fakes.claim_share())
        node.daemon.remove = lambda group: slowly(real[0], group)
        node.daemon.open = lambda share, path, device: slowly(real[1], share, path, device=device)
        first = asyncio.ensure_future(node.book.close("claim-u1"))
        await asyncio.sleep(0)
        taken = asyncio.ensure_future(node.book.open(fakes.claim_share()))
        first.add_done_callback(lambda _: last.append(asyncio.ensure_future(node.book.close("claim-u1"))))
        last = []
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(first, taken)
        await last[0]

    run(crossing())
    assert node.leftovers() == []
    assert not node.book._queues
