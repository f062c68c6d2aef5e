"""Opening and closing shares: all of a share or nothing of it, whatever restarts in between."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time

import msgspec
import pytest

from gemlet.errors import DaemonUnreachable, GemletError, Refused
from gemlet.kube import book as book_module
from gemlet.kube import cdi, checkpoint
from gemlet.kube.book import NoRoom, NotWithheld
from gemlet.kube.request import Amounts
from gemlet.kube.share import Share
from tests.unit.kube import fakes

FIRST, SECOND = fakes.FIRST, fakes.SECOND


def test_a_share_is_a_directory_a_socket_a_group_and_a_file(node, run):
    run(node.book.open(fakes.claim_share()))
    amounts, socket, device = node.daemon.opened["default/u1"]
    assert (amounts, device) == (fakes.amounts(), 0)
    assert socket == str(node.shares / "claim-u1" / "gemlet.sock")
    assert cdi.share_ids(node.cdi) == {"claim-u1"}
    assert [share.id for share in checkpoint.load(node.path / "checkpoint.json").shares] == ["claim-u1"]
    run(node.book.close("claim-u1"))
    assert node.leftovers() == []
    run(node.book.close("claim-u1"))


def test_what_is_taken_of_a_gpu_is_its_time_or_its_memory_whichever_is_more(node, run):
    assert node.book.taken(FIRST) == 0
    run(node.book.open(fakes.claim_share("u1", granted=fakes.amounts(memory=8, compute=25))))
    assert node.book.taken(FIRST) == 0.25
    run(node.book.open(fakes.claim_share("u2", granted=fakes.amounts(memory=32, compute=10))))
    assert node.book.taken(FIRST) == 0.5
    assert (node.book.taken(SECOND), node.book.taken("GPU-unknown")) == (0, 0)


def test_a_hundred_shares_opened_at_once_and_closed_leave_nothing(node, run):
    async def all_of_them():
        small = fakes.amounts(memory=1, compute=1)
        shares = [fakes.claim_share(f"u{n}", gpus=(FIRST if n % 2 else SECOND,), granted=small) for n in range(100)]
        await asyncio.gather(*(node.book.open(share) for share in shares))
        assert len(node.daemon.opened) == 100
        await asyncio.gather(*(node.book.close(share.id) for share in shares))

    run(all_of_them())
    assert node.leftovers() == []
    assert not node.book._locks


def test_opening_a_claim_twice_is_opening_it_once(node, run):
    first = run(node.book.open(fakes.claim_share(opened=1.0)))
    again = run(node.book.open(fakes.claim_share(opened=2.0)))
    assert again == first
    shutil.rmtree(node.cdi)
    run(node.book.open(fakes.claim_share()))
    assert cdi.share_ids(node.cdi) == {"claim-u1"}


def test_an_unreachable_daemon_leaves_nothing(node, run):
    node.daemon.down = True
    with pytest.raises(DaemonUnreachable):
        run(node.book.open(fakes.claim_share()))
    assert node.leftovers() == []
    assert node.restart().shares == {}


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(node, run, monkeypatch):
    def full(file, shares, unaccounted):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run(node.book.open(fakes.claim_share()))
    assert node.leftovers() == []


def test_a_share_that_is_closed_on_a_full_disk_is_closed_for_good(node, run, monkeypatch):
    """The next try has nothing left to close, and the checkpoint still named it: the next start brought it back."""
    run(node.book.open(fakes.claim_share()))
    save, full = checkpoint.save, [28]

    def tried(*given):
        if full:
            raise OSError(full.pop(), "No space left on device")
        save(*given)

    monkeypatch.setattr(checkpoint, "save", tried)
    with pytest.raises(OSError, match="No space left"):
        run(node.book.close("claim-u1"))
    run(node.book.close("claim-u1"))
    assert checkpoint.load(node.path / "checkpoint.json").shares == []


def test_a_gpu_is_never_given_out_beyond_what_it_has(node, run):
    run(node.book.open(fakes.claim_share("u1", granted=fakes.amounts(memory=10, compute=60))))
    with pytest.raises(NoRoom, match=r"compute: 41 .* 60 of 100"):
        run(node.book.open(fakes.claim_share("u2", granted=fakes.amounts(memory=10, compute=41))))
    with pytest.raises(NoRoom, match=r"memory: 71Gi .* 10Gi of 80Gi"):
        run(node.book.open(fakes.claim_share("u3", granted=fakes.amounts(memory=71, compute=10))))
    run(node.book.open(fakes.claim_share("u4", gpus=(SECOND,), granted=fakes.amounts(memory=71, compute=100))))


def units(number):
    nothing = Amounts(memory=0, compute=10, limit=10)
    name = f"units-{number}"
    return Share(
        id=name,
        group=name,
        gpus=(FIRST,),
        granted=nothing,
        amounts=nothing,
        devices={"gemlet.dev/compute-units": (name,)},
    )


def test_containers_that_start_at_the_same_time_share_what_there_is(node, run, monkeypatch):
    """The kubelet says what memory units have when their containers start, and starts several at a time."""
    remove = node.daemon.remove

    async def slowly(group):
        await asyncio.sleep(0)
        await remove(group)

    monkeypatch.setattr(node.daemon, "remove", slowly)

    async def both():
        opened = [await node.book.open(units(number)) for number in range(2)]
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
    share = run(node.book.open(units(0)))
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
        await node.book.open(msgspec.structs.replace(units(1), devices=share.devices))
        go_on.set()
        with pytest.raises((GemletError, OSError)):
            await changing
        await node.book.restore()
        assert set(node.book.shares) == {"units-1"}
        assert set(node.daemon.opened) == {"units-1"}

    run(steps())


def test_a_share_stays_what_it_was_if_its_group_cannot_be_removed(node, run):
    share = run(node.book.open(units(0)))
    node.daemon.busy.add(share.group)
    with pytest.raises(Refused):
        run(node.book.change(msgspec.structs.replace(share, group="default/p/c", granted=fakes.amounts(memory=50))))
    assert node.book.shares[share.id] == share


def test_a_share_of_two_gpus_counts_on_both(node, run):
    run(node.book.open(fakes.claim_share("u1", gpus=(FIRST, SECOND), granted=fakes.amounts(compute=60))))
    for gpu in (FIRST, SECOND):
        with pytest.raises(NoRoom):
            run(node.book.open(fakes.claim_share("u2", gpus=(gpu,), granted=fakes.amounts(compute=50))))


def test_everything_is_back_after_a_reboot(node, run):
    run(node.book.open(fakes.claim_share("u1")))
    run(node.book.open(fakes.claim_share("u2")))
    shutil.rmtree(node.cdi)
    shutil.rmtree(node.shares)
    node.shares.mkdir()
    node.daemon.opened.clear()
    after = node.restart()
    assert after.incomplete({})
    run(after.restore())
    assert set(node.daemon.opened) == {"default/u1", "default/u2"}
    assert cdi.share_ids(node.cdi) == {"claim-u1", "claim-u2"}
    assert not after.incomplete(run(node.daemon.shares()))


@pytest.mark.parametrize(
    "changed",
    [
        {"min": 0.2},
        {"max": 1.0},
        {"memory": 80 * fakes.GIB},
        {"resident": 0},
        {"priority": "latency"},
        {"device": None},
    ],
    ids=str,
)
def test_a_group_with_other_limits_than_the_book_s_gets_those(node, run, changed):
    """Of a daemon that found an older file of its own, or of `gemlet set`: it was for the rest of the pod's life."""
    run(node.book.open(fakes.claim_share("u1")))
    run(node.book.open(fakes.claim_share("u2")))
    wanted = run(node.daemon.shares())
    assert not node.book.incomplete(wanted)
    node.daemon.terms["default/u1"] = wanted["default/u1"]._replace(**changed)
    for unaccounted in (set(), {"claim-u0"}):
        node.book.unaccounted = unaccounted
        assert node.book.incomplete(run(node.daemon.shares()))
    run(node.book.restore())
    assert run(node.daemon.shares()) == wanted
    assert not node.book.incomplete(wanted)


def test_shares_that_the_book_does_not_know_are_removed(node, run):
    run(node.book.open(fakes.claim_share("u1")))
    run(node.book.open(fakes.claim_share("u2")))
    node.book.shares.pop("claim-u2")
    run(node.book.restore())
    assert node.leftovers() == ["claim-u1", "gemlet.dev-claim-u1.json", "default/u1", "claim-u1"]


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


def test_a_damaged_entry_costs_that_entry(node, run, caplog):
    run(node.book.open(fakes.claim_share("u1")))
    path = node.path / "checkpoint.json"
    document = json.loads(path.read_text())
    document["shares"].insert(0, {"id": "claim-u0", "gpus": 5})
    path.write_text(json.dumps(document))
    assert set(node.restart().shares) == {"claim-u1"}
    assert "left out" in caplog.text


def test_a_share_of_a_gpu_that_is_gone_does_not_stop_the_others(node, run):
    run(node.book.open(fakes.claim_share("u1")))
    node.book.shares["claim-u2"] = fakes.claim_share("u2", gpus=("GPU-gone",))
    run(node.book.restore())
    assert set(node.daemon.opened) == {"default/u1", "default/u2"}


def test_what_had_the_device_or_the_name_before_is_closed(node, run):
    slot = {"gemlet.dev/share": (f"{FIRST}::0",)}

    def slot_share(name, group):
        made = fakes.claim_share(name, group=group)
        return msgspec.structs.replace(made, claim=None, claim_uid="", requests={}, devices=slot)

    run(node.book.open(slot_share("old", "slot-old")))
    run(node.book.open(slot_share("new", "slot-new")))
    assert set(node.book.shares) == {"claim-new"}
    assert set(node.daemon.opened) == {"slot-new"}


def test_a_changed_share_keeps_its_place(node, run):
    share = run(node.book.open(fakes.claim_share("u1")))
    run(node.book.change(msgspec.structs.replace(share, group="default/pod/main", amounts=fakes.amounts(limit=80))))
    assert set(node.daemon.opened) == {"default/pod/main"}
    assert node.daemon.opened["default/pod/main"][0].limit == 80
    assert node.restart().shares["claim-u1"].group == "default/pod/main"


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


def test_a_change_is_of_the_share_that_it_was_made_for(node, run):
    """A claim that is given up and allocated anew has the same share, maybe on another GPU."""
    before = fakes.claim_share(opened=1.0)
    after = fakes.claim_share(gpus=(SECOND,), opened=2.0)
    run(node.book.open(before))
    run(node.book.close(before.id))
    run(node.book.open(after))
    with pytest.raises(KeyError):
        run(node.book.change(msgspec.structs.replace(before, amounts=fakes.amounts(memory=8))))
    assert list(node.book.shares.values()) == [after]


def test_a_change_that_fails_late_is_taken_back_everywhere(node, run, monkeypatch):
    """A daemon that does not answer in time may have done it all the same, and another's save may have written it."""
    before, other = fakes.claim_share(opened=1.0), fakes.claim_share("u2")
    wanted = msgspec.structs.replace(before, amounts=fakes.amounts(limit=100))
    run(node.book.open(before))
    opened = node.daemon.open

    async def late(share, path, *, device):
        await opened(share, path, device=device)
        if share == wanted:
            await node.book.open(other)
            raise DaemonUnreachable("does not answer", hint="")

    monkeypatch.setattr(node.daemon, "open", late)
    with pytest.raises(DaemonUnreachable):
        run(node.book.change(wanted))
    assert node.daemon.opened["default/u1"][0].limit == 100
    assert node.book.incomplete(run(node.daemon.shares()))
    run(node.book.restore())
    assert node.daemon.opened["default/u1"][0] == before.amounts
    assert not node.book.incomplete(run(node.daemon.shares()))
    run(node.book.catch_up())
    assert checkpoint.load(node.path / "checkpoint.json").shares == [before, other]


def test_a_directory_that_is_nobodys_is_found(node, run):
    run(node.book.open(fakes.claim_share()))
    assert not node.book.incomplete(run(node.daemon.shares()))
    (node.shares / "slot-1").mkdir()
    (node.shares / "slot-2").symlink_to(node.path)
    (node.shares / "slot-3").touch()
    assert node.book.incomplete(run(node.daemon.shares()))
    run(node.book.restore())
    assert not node.book.incomplete(run(node.daemon.shares()))


def test_a_change_that_fails_changes_nothing(node, run):
    share = run(node.book.open(fakes.claim_share("u1")))
    node.daemon.down = True
    with pytest.raises(DaemonUnreachable):
        run(node.book.change(msgspec.structs.replace(share, amounts=fakes.amounts(8))))
    assert node.book.shares["claim-u1"] == share


def test_a_share_in_use_is_not_closed(node, run, monkeypatch):
    monkeypatch.setattr(book_module, "CLOSE_SECONDS", 0.1)
    run(node.book.open(fakes.claim_share("u1")))
    node.daemon.busy.add("default/u1")
    with pytest.raises(Refused):
        run(node.book.close("claim-u1"))
    assert "claim-u1" in node.book.shares
    assert not cdi.share_ids(node.cdi), "nothing new starts in it"
    node.daemon.busy.clear()
    run(node.book.close("claim-u1"))
    assert node.leftovers() == []


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


def test_a_change_that_could_not_be_written_is_written_at_the_next_try(node, run, monkeypatch):
    """The next try found nothing to change and succeeded: the pod started, and the next agent knew neither its name nor
    what it was to have."""
    before = fakes.claim_share()
    after = msgspec.structs.replace(before, group="default/p/c", amounts=fakes.amounts(memory=8))
    run(node.book.open(before))
    save, full = checkpoint.save, [28]

    def tried(*given):
        if full:
            raise OSError(full.pop(), "No space left on device")
        save(*given)

    monkeypatch.setattr(checkpoint, "save", tried)
    with pytest.raises(OSError, match="No space left"):
        run(node.book.change(after))
    run(node.book.change(after))
    assert checkpoint.load(node.path / "checkpoint.json").shares == [after]


def test_a_share_that_is_closed_while_it_opens_is_not_announced(node, run, monkeypatch):
    """The kubelet gives the devices of a container that it gave up to the next one."""
    held, opened = asyncio.Event(), node.daemon.open

    async def slow(share, path, *, device):
        if share.group == "units-1":
            await held.wait()
        await opened(share, path, device=device)

    monkeypatch.setattr(node.daemon, "open", slow)

    async def scenario():
        first = asyncio.ensure_future(node.book.open(units(1)))
        while "units-1" not in node.book.shares:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = msgspec.structs.replace(units(2), devices=units(1).devices)
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
    assert not node.book._locks


class TestFilesThatCannotBeRemoved:
    """A container runtime starts a container in a share by the share's file, whatever the agent knows."""

    def test_what_is_withheld_in_vain_is_tried_again_until_it_is_withheld(self, node, run, monkeypatch):
        run(node.book.open(fakes.claim_share()))
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        with pytest.raises(NotWithheld, match=r"claim-u1 cannot be withheld .*Read-only file system") as caught:
            node.book.withhold("claim-u1", "hostile")
        assert str(node.cdi) in caught.value.hint
        for agent in (node.book, node.restart()):
            run(agent.restore())  # which is told of by `not_withheld`, and keeps nothing else back
            assert (agent.withheld(), agent.not_withheld()) == ({"claim-u1"}, {"claim-u1"})
            with pytest.raises(NotWithheld):
                agent.withhold_again()
        stuck.mended = True
        node.book.withhold_again()
        assert cdi.share_ids(node.cdi) == set()
        assert (node.book.withheld(), node.book.not_withheld()) == ({"claim-u1"}, set())
        assert not node.book.incomplete(run(node.daemon.shares()))

    def test_it_is_tried_again_without_a_daemon(self, node, run, monkeypatch):
        for uid in ("u1", "u2"):
            run(node.book.open(fakes.claim_share(uid)))
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        for uid in ("u1", "u2"):
            with pytest.raises(NotWithheld):
                node.book.withhold(f"claim-{uid}", "hostile")
        node.daemon.down = True
        with pytest.raises(NotWithheld):
            node.book.withhold_again()
        assert stuck.tries == 4, "one that fails keeps no other"
        stuck.mended = True
        node.book.withhold_again()
        assert cdi.share_ids(node.cdi) == set()

    def test_a_mark_that_could_not_be_made_is_made(self, node, run):
        """The next agent would give the share out again before it had seen the pod."""
        run(node.book.open(fakes.claim_share()))
        shutil.rmtree(node.shares / "claim-u1")
        with pytest.raises(NotWithheld, match="No such file"):
            node.book.withhold("claim-u1", "hostile")
        assert cdi.share_ids(node.cdi) == set(), "the file has gone all the same"
        assert node.book.incomplete(run(node.daemon.shares()))
        run(node.book.restore())
        assert node.book.not_withheld() == set()
        run(node.restart().restore())
        assert cdi.share_ids(node.cdi) == set()

    def test_a_claim_is_not_given_again_before_it_is_withheld(self, node, run, monkeypatch):
        run(node.book.open(fakes.claim_share()))
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        with pytest.raises(NotWithheld):
            node.book.withhold("claim-u1", "hostile")
        with pytest.raises(NotWithheld):
            run(node.book.open(fakes.claim_share()))
        node.book.release("claim-u1", "hostile")
        assert run(node.book.open(fakes.claim_share())).id == "claim-u1", "the pod for which it was withheld has gone"
        assert not stuck.mended

    def test_a_mark_that_could_not_be_removed_is_removed(self, node, run, monkeypatch):
        """The next agent would withhold the share from the pods that wait for it."""
        run(node.book.open(fakes.claim_share()))
        node.book.withhold("claim-u1", "hostile")
        stuck = fakes.Stuck(node.shares / "claim-u1", monkeypatch)
        with pytest.raises(OSError, match="Read-only"):
            node.book.release("claim-u1", "hostile")
        assert node.book.incomplete(run(node.daemon.shares()))
        stuck.mended = True
        run(node.book.restore())
        assert not node.book.incomplete(run(node.daemon.shares()))
        assert (node.restart().withheld(), cdi.share_ids(node.cdi)) == (set(), {"claim-u1"})

    def test_what_cannot_be_closed_is_not_given_to_others(self, node, run, monkeypatch):
        run(node.book.open(fakes.claim_share("u1", granted=fakes.amounts(compute=60))))
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        with pytest.raises(OSError, match="Read-only"):
            run(node.book.close("claim-u1"))
        assert set(node.daemon.opened) == {"default/u1"}, "who starts in it is held to it"
        with pytest.raises(NoRoom, match="60 of 100 is taken"):
            run(node.book.open(fakes.claim_share("u2", granted=fakes.amounts(compute=60))))
        with pytest.raises(OSError, match="Read-only"):
            run(node.book.open(fakes.claim_share("u3", group="default/u1", granted=fakes.amounts(compute=1))))
        stuck.mended = True
        run(node.book.close("claim-u1"))
        assert node.leftovers() == []

    def test_a_file_that_is_nobodys_is_found_and_stops_nothing_else(self, node, run, monkeypatch):
        run(node.book.open(fakes.claim_share()))
        cdi.path_of(node.cdi, "claim-u0").write_text("{}")
        node.daemon.opened["default/u0"] = (fakes.amounts(), "", None)
        node.daemon.terms["default/u0"] = node.daemon.terms["default/u1"]
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        for _ in range(2):
            assert node.book.incomplete(run(node.daemon.shares()))
            run(node.book.restore())
            node.now += 60
        assert set(node.daemon.opened) == {"default/u1"}
        stuck.mended = True
        run(node.book.restore())
        assert not node.book.incomplete(run(node.daemon.shares()))

    def test_a_slot_closes_on_a_node_whose_cdi_directory_is_read_only(self, node, run, monkeypatch):
        """It has no file; Linux refuses to remove what is not there, too."""
        run(node.book.open(fakes.slot_share()))
        fakes.Stuck(node.cdi, monkeypatch)
        run(node.book.close("claim-s0"))
        assert node.leftovers() == []

    def test_a_file_that_cannot_be_looked_at_may_be_there(self, node, monkeypatch):
        assert not cdi.is_there(node.cdi, "claim-u1"), "nor is its directory"
        node.cdi.touch()
        assert not cdi.is_there(node.cdi, "claim-u1")

        def unreadable(path):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(type(node.cdi), "lstat", unreadable)
        assert cdi.is_there(node.cdi, "claim-u1")
