"""Opening and closing shares: all of a share or nothing of it, whatever restarts in between."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from gemlet.errors import DaemonUnreachable, Refused
from gemlet.kube import book as book_module
from gemlet.kube import cdi, checkpoint
from gemlet.kube.book import NoRoom
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


def test_opening_a_claim_twice_is_opening_it_once(node, run):
    first = run(node.book.open(fakes.claim_share(opened=1.0)))
    again = run(node.book.open(fakes.claim_share(opened=2.0)))
    assert again == first
    shutil.rmtree(node.cdi)
    run(node.book.open(fakes.claim_share()))
    assert cdi.share_ids(node.cdi) == {"claim-u1"}


def test_a_claim_that_was_allocated_anew_is_another_share(node, run, monkeypatch):
    """The kubelet asks again for what was prepared when it starts: after its last pod was deleted by force, maybe."""
    monkeypatch.setattr("gemlet.kube.book.CLOSE_SECONDS", 0.05)
    run(node.book.open(fakes.claim_share(granted=fakes.amounts(16, 80))))
    for anew in (
        fakes.claim_share(granted=fakes.amounts(16, 10)),
        msgspec.structs.replace(fakes.claim_share(gpus=(fakes.SECOND,)), requests={"gpu-1": ("gpu",)}),
    ):
        before = node.book.shares["claim-u1"]
        node.daemon.busy.add("default/u1")
        with pytest.raises(Refused):
            run(node.book.open(anew))
        assert node.book.shares["claim-u1"] is before, "its programs run on"
        node.daemon.busy.clear()
        assert run(node.book.open(anew)) is anew
        assert node.daemon.opened["default/u1"][0] == anew.granted
        assert node.restart().shares["claim-u1"] == anew


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


def test_what_could_not_be_opened_is_not_given_out_though_its_file_stays(node, run, monkeypatch):
    """It stayed in the book, was restored, and had never been written down: the next agent took it from its pod."""
    node.cdi.mkdir()
    cdi.write(node.cdi, "claim-u1", {"of": "an agent before"})
    stuck = fakes.Stuck(node.cdi, monkeypatch)
    node.daemon.refused.add("default/u1")
    with pytest.raises(Refused):
        run(node.book.open(fakes.claim_share()))
    assert stuck.tries
    assert node.book.shares == {}
    run(node.book.restore())
    assert node.daemon.opened == {}
    stuck.mended = True
    run(node.book.restore(at_once=True))
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


def test_a_share_stays_what_it_was_if_its_group_cannot_be_removed(node, run):
    share = run(node.book.open(fakes.unit_share()))
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


class TestFilesThatCannotBeRemoved:
    """A container runtime starts a container in a share by the share's file, whatever the agent knows."""

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
