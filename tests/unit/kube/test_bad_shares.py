"""A share that cannot be brought back: the others are, no container starts in it, and it is tried again."""

from __future__ import annotations

import asyncio
import os
import shutil

import msgspec
import pytest

from gemlet.daemon import address
from gemlet.errors import DaemonUnreachable, GemletError, Refused
from gemlet.kube import agent, cdi
from gemlet.kube.device_plugin import DevicePlugin
from gemlet.kube.request import Amounts
from tests.unit.kube import fakes

SMALL = Amounts(memory=fakes.GIB, compute=1, limit=1)


def opened(node, run, *uids):
    for uid in uids:
        run(node.book.open(fakes.claim_share(uid, granted=SMALL)))


def after_reboot(node):
    """The next agent of the node, which has the checkpoint only."""
    shutil.rmtree(node.cdi, ignore_errors=True)
    shutil.rmtree(node.shares)
    node.shares.mkdir()
    node.daemon.opened.clear()
    return node.restart()


class TestAGroupThatCannotBeMade:
    def test_the_others_are_restored_and_no_container_starts_in_it(self, node, run, caplog):
        opened(node, run, "u1", "u2", "u3")
        node.daemon.refused.add("default/u2")
        book = node.restart()  # the files of all three are there
        node.daemon.opened.clear()
        run(book.restore())
        assert set(node.daemon.opened) == {"default/u1", "default/u3"}
        assert cdi.share_ids(node.cdi) == {"claim-u1", "claim-u3"}
        assert book.not_restored() == {"claim-u2"}
        assert (book.not_restored(), book.left_open()) == ({"claim-u2"}, set())
        assert "share=claim-u2 not restored: group default/u2 is refused" in caplog.text

    def test_it_is_tried_again_later_each_time_until_it_can_be(self, node, run, caplog):
        opened(node, run, "u1", "u2")
        node.daemon.refused.add("default/u2")
        book = after_reboot(node)
        tried = []

        def pass_seconds(seconds):
            for _ in range(seconds):
                node.now += 1
                if book.incomplete(run(node.daemon.shares())):
                    tried.append(node.now)
                    run(book.restore())

        run(book.restore())
        pass_seconds(200)
        assert tried == [2, 6, 14, 30, 62, 122, 182]
        assert caplog.text.count("claim-u2 not restored") == 1, "the same is said once"
        node.daemon.refused.clear()
        pass_seconds(60)
        assert tried[-1] == 242
        assert set(node.daemon.opened) == {"default/u1", "default/u2"}
        assert cdi.share_ids(node.cdi) == {"claim-u1", "claim-u2"}
        assert book.not_restored() == set()
        assert not book.incomplete(run(node.daemon.shares()))

    def test_what_else_is_missing_is_restored_meanwhile(self, node, run):
        opened(node, run, "u1", "u2")
        node.daemon.refused.add("default/u2")
        book = after_reboot(node)
        run(book.restore())
        node.daemon.opened.pop("default/u1")
        assert book.incomplete(run(node.daemon.shares()))
        asked = list(node.daemon.asked)
        run(book.restore())
        assert set(node.daemon.opened) == {"default/u1"}
        assert node.daemon.asked[len(asked) :] == ["default/u1"], "the other's time has not come"

    def test_all_are_tried_at_once_when_the_node_has_changed(self, node, run):
        """A GPU that comes late may be what it took."""
        opened(node, run, "u1")
        node.daemon.refused.add("default/u1")
        book = after_reboot(node)
        run(book.restore())
        node.daemon.refused.clear()
        run(book.restore())
        assert book.not_restored() == {"claim-u1"}
        run(book.restore(at_once=True))
        assert book.not_restored() == set()

    def test_a_daemon_that_fails_at_one_share_only_is_not_down(self, node, run):
        opened(node, run, "u1", "u2", "u3")
        book = after_reboot(node)
        opening = node.daemon.open

        async def hangs(share, path, *, device):
            if share.id == "claim-u2":
                raise DaemonUnreachable("does not answer", hint="")
            await opening(share, path, device=device)

        node.daemon.open = hangs
        run(book.restore())
        assert set(node.daemon.opened) == {"default/u1", "default/u3"}
        assert book.not_restored() == {"claim-u2"}

    def test_a_daemon_that_is_down_is_no_fault_of_a_share(self, node, run):
        opened(node, run, "u1", "u2")
        node.daemon.down = True
        book = node.restart()
        with pytest.raises(DaemonUnreachable):
            run(book.restore())
        assert book.not_restored() == set()
        assert cdi.share_ids(node.cdi) == {"claim-u1", "claim-u2"}

    def test_what_nobody_foresaw_in_one_share_is_its_own_trouble(self, node, run, caplog):
        opened(node, run, "u1", "u2")
        book = after_reboot(node)
        opening = node.daemon.open

        async def confused(share, path, *, device):
            if share.id == "claim-u1":
                raise KeyError("uuid")
            await opening(share, path, device=device)

        node.daemon.open = confused
        run(book.restore())
        assert set(node.daemon.opened) == {"default/u2"}
        assert book.not_restored() == {"claim-u1"}
        assert "KeyError" in caplog.text

    def test_a_name_that_the_daemon_still_has_for_nobody_is_taken_back(self, node, run, monkeypatch):
        """Left over at another socket, by a change that failed before the agent ended. It is no share's, and was never
        removed, since a share has that name."""
        share = fakes.claim_share("u1")
        run(node.book.open(share))
        fakes.one_socket_each(node.daemon, monkeypatch)
        after = after_reboot(node)
        node.daemon.opened[share.group] = (share.amounts, str(node.path / "other.sock"), 0)
        node.daemon.busy = {share.group}
        run(after.restore())
        assert after.not_restored() == {share.id}, "somebody is in it"
        node.daemon.busy = set()
        run(after.restore(at_once=True))
        assert after.not_restored() == set()
        assert node.daemon.opened[share.group][1] == after.socket(share.id)

    def test_the_kubelet_may_ask_for_it_before_its_time(self, node, run):
        opened(node, run, "u1")
        node.daemon.refused.add("default/u1")
        book = after_reboot(node)
        run(book.restore())
        with pytest.raises(Refused):
            run(book.open(fakes.claim_share("u1", granted=SMALL)))
        assert cdi.share_ids(node.cdi) == set()
        node.daemon.refused.clear()
        run(book.open(fakes.claim_share("u1", granted=SMALL)))
        assert (book.not_restored(), cdi.share_ids(node.cdi)) == (set(), {"claim-u1"})

    def test_it_stays_taken_and_can_be_closed(self, node, run):
        opened(node, run, "u1", "u2")
        node.daemon.refused.add("default/u1")
        book = after_reboot(node)
        run(book.restore())
        assert book.taken(fakes.FIRST) == 0.025
        run(book.close("claim-u1"))
        assert (book.not_restored(), book.taken(fakes.FIRST)) == (set(), 0.0125)
        node.now += 1000
        assert not book.incomplete(run(node.daemon.shares()))


class TestFiles:
    def test_a_bad_share_whose_file_cannot_be_removed_is_told_of_until_it_is(self, node, run, monkeypatch):
        opened(node, run, "u1")
        node.daemon.refused.add("default/u1")
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        book = node.restart()
        node.daemon.opened.clear()
        run(book.restore())
        assert book.left_open() == {"claim-u1"}
        with pytest.raises(OSError, match="claim-u1"):
            book.keep_out()
        stuck.mended = True
        book.keep_out()
        assert book.left_open() == set()
        node.daemon.refused.clear()
        run(book.restore(at_once=True))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_a_file_that_cannot_be_written_keeps_back_that_share(self, node, run, monkeypatch):
        opened(node, run, "u1", "u2")
        book = after_reboot(node)
        write, full = cdi.write, [True]

        def tried(directory, share_id, content):
            if share_id == "claim-u1" and full[0]:
                raise OSError(28, "No space left on device")
            return write(directory, share_id, content)

        monkeypatch.setattr(cdi, "write", tried)
        run(book.restore())
        assert book.not_restored() == {"claim-u1"}
        assert set(node.daemon.opened) == {"default/u1", "default/u2"}
        full[0] = False
        node.now += 2
        assert book.incomplete(run(node.daemon.shares()))
        run(book.restore())
        assert (book.not_restored(), cdi.share_ids(node.cdi)) == (set(), {"claim-u1", "claim-u2"})

    def test_a_directory_that_cannot_be_made_keeps_back_that_share(self, node, run):
        opened(node, run, "u1", "u2")
        book = after_reboot(node)
        (node.shares / "claim-u1").touch()
        run(book.restore())
        assert book.not_restored() == {"claim-u1"}
        assert set(node.daemon.opened) == {"default/u2"}

    def test_a_file_that_is_nobodys_stops_no_start(self, node, run, monkeypatch, caplog):
        opened(node, run, "u1")
        cdi.path_of(node.cdi, "claim-u0").write_text("{}")
        stuck = fakes.Stuck(node.cdi, monkeypatch)
        book = node.restart()
        run(book.restore())
        assert book.not_restored() == set(), "it is none of the node's shares"
        assert caplog.text.count("share=claim-u0 not removed") == 1
        assert not book.incomplete(run(node.daemon.shares()))
        stuck.mended = True
        node.now += 2
        assert book.incomplete(run(node.daemon.shares()))
        run(book.restore())
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_a_directory_that_is_nobodys_and_stays_is_not_looked_for_every_two_seconds(
        self, node, run, monkeypatch, caplog
    ):
        opened(node, run, "u1")
        (node.shares / "slot-1").mkdir()

        def busy(path, **given):
            raise OSError(16, "Device or resource busy", str(path))

        monkeypatch.setattr(os, "rmdir", busy)  # of a mount, which root cannot remove either
        book = node.restart()
        run(book.restore())
        assert caplog.text.count("share=slot-1 not removed: [Errno 16]") == 1
        assert not book.incomplete(run(node.daemon.shares()))
        node.now += 2
        assert book.incomplete(run(node.daemon.shares()))
        monkeypatch.undo()
        run(book.restore())
        assert not (node.shares / "slot-1").exists()
        assert not book.incomplete(run(node.daemon.shares()))


class TestSlots:
    def test_a_container_of_a_bad_share_does_not_start(self, node, run):
        """The kubelet asks before each start, and nothing of the share was to be changed."""
        share = run(node.book.open(fakes.slot_share()))
        node.daemon.refused.add(share.group)
        book = after_reboot(node)
        run(book.restore())
        with pytest.raises(Refused):
            run(book.change(share))
        assert (book.not_restored(), book.shares) == ({share.id}, {share.id: share})
        node.daemon.refused.clear()
        run(book.change(share))
        assert book.not_restored() == set()
        assert share.group in node.daemon.opened

    def test_its_devices_are_not_offered_and_those_of_others_are(self, node, run):
        shares = [msgspec.structs.replace(fakes.slot_share(number), granted=SMALL) for number in range(2)]
        for number, share in enumerate(shares):
            run(node.book.open(msgspec.structs.replace(share, group=f"default/s{number}")))
        node.daemon.refused.add("default/s1")
        book = after_reboot(node)
        run(book.restore())
        assert book.devices_not_restored() == {f"{fakes.FIRST}::1"}

        async def scenario():
            one = agent.Agent(agent_options(node), None)
            gpus = one._gpus
            await gpus.set(fakes.GPUS)
            await gpus.serve(True)
            plugin = DevicePlugin(one._resources[0], gpus)
            lists = plugin.ListAndWatch(None)
            first = await anext(lists)
            assert {device.health for device in first.devices} == {"Healthy"}
            following = asyncio.ensure_future(anext(lists))
            await asyncio.sleep(0)
            await gpus.withhold(book.devices_not_restored())
            second = await following
            assert [each.ID for each in second.devices if each.health != "Healthy"] == [f"{fakes.FIRST}::1"]
            await lists.aclose()

        run(scenario())


def agent_options(node):
    return agent.AgentOptions(
        node="n1",
        endpoint=address.explicit(node.path),
        api=None,
        directory=node.path,
        cdi=node.cdi,
        kubelet=node.path / "kubelet",
    )


class TestAgent:
    """The node is served whatever becomes of one share."""

    @pytest.fixture
    def started(self, node, monkeypatch):
        monkeypatch.setattr(agent, "RESTORE_SECONDS", 0.01)

        def start():
            one = agent.Agent(agent_options(node), None)
            one._daemon = one._book._daemon = node.daemon
            one._book.host = node.book.host
            one._book.gpus = {gpu.uuid: gpu for gpu in fakes.GPUS}
            one._looked.set()
            wanted = {}
            for task in one.tasks():
                if task.__name__ in ("_restore", "_keep_out"):
                    wanted[task.__name__] = task
                else:
                    task.close()
            return one, list(wanted.values())

        return start

    def served(self, started, run, then):
        async def scenario():
            one, tasks = started()
            await one._gpus.set(fakes.GPUS)
            running = [asyncio.create_task(task) for task in tasks]
            while not one._gpus.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await then(one)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        run(scenario())

    def test_one_group_that_cannot_be_made_stops_no_node(self, node, run, started):
        opened(node, run, "u1", "u2")
        slot = run(node.book.open(msgspec.structs.replace(fakes.slot_share(), granted=SMALL)))
        node.daemon.refused |= {"default/u2", slot.group}
        after_reboot(node)

        async def then(one):
            assert one._restored
            assert (await one._healthy()).status == 200
            assert set(node.daemon.opened) == {"default/u1"}
            assert one._gpus.withheld == {f"{fakes.FIRST}::0"}
            text = (await one._metrics()).text
            assert "gemlet_node_shares_not_restored 2.0" in text
            assert "gemlet_node_shares_left_open 0.0" in text
            node.daemon.refused.clear()
            await one._book.change(slot)  # as the kubelet's next try to start it
            while one._gpus.withheld:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert "gemlet_node_shares_not_restored 1.0" in (await one._metrics()).text

        self.served(started, run, then)

    def test_one_file_that_cannot_be_removed_stops_no_node(self, node, run, started, monkeypatch):
        opened(node, run, "u1", "u2")
        fakes.Stuck(node.cdi, monkeypatch)
        node.daemon.refused.add("default/u1")
        cdi.path_of(node.cdi, "claim-u0").write_text("{}")
        node.daemon.opened.clear()

        async def then(one):
            assert set(node.daemon.opened) == {"default/u2"}
            with pytest.raises(GemletError):
                await one._book.open(one._book.shares["claim-u1"])
            assert "gemlet_node_shares_left_open 1.0" in (await one._metrics()).text

        self.served(started, run, then)
