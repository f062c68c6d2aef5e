"""The agent as a whole, as far as the other tests do not have it in parts."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from gemlet.daemon import address
from gemlet.errors import DeviceError
from gemlet.kube import agent, cdi, checkpoint
from gemlet.kube.request import Amounts
from tests.unit.kube import fakes


def test_a_node_without_gpus_says_so_once_and_offers_nothing(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(agent, "INVENTORY_SECONDS", 0.01)
    options = agent.AgentOptions(node="n1", endpoint=address.explicit(tmp_path), api=None, directory=tmp_path)
    one = agent.Agent(options, None)
    watching, *others = one.tasks()
    for other in others:
        other.close()

    async def scenario():
        asked, enough = [], asyncio.Event()
        loop = asyncio.get_running_loop()

        def read(_):
            asked.append(True)
            if len(asked) == 3:
                loop.call_soon_threadsafe(enough.set)
            raise DeviceError("NVML cannot be used", hint="")

        monkeypatch.setattr(agent.NvmlInventory, "devices", read)
        task = asyncio.create_task(watching)
        await enough.wait()
        task.cancel()

    run(scenario())
    assert caplog.text.count("NVML cannot be used") == 1
    assert one._gpus.all == []


def test_a_node_whose_units_the_kubelet_would_not_take_says_so_and_offers_nothing(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(agent, "INVENTORY_SECONDS", 0.01)
    monkeypatch.setattr(agent.NvmlInventory, "devices", lambda _: [])
    name = "GPU-00000000-0000-0000-0000-0000000000{:02x}"
    found = [
        dataclasses.replace(fakes.GPUS[0], index=each, uuid=name.format(each), memory=288 * fakes.GIB)
        for each in range(16)
    ]
    monkeypatch.setattr(agent.inventory, "read", lambda: found)
    options = agent.AgentOptions(
        node="n1", endpoint=address.explicit(tmp_path), api=None, directory=tmp_path, face="units", oversubscribe=8
    )
    one = agent.Agent(options, None)
    watching, *others = one.tasks()
    for other in others:
        other.close()

    async def scenario():
        task = asyncio.create_task(watching)
        await one._looked.wait()
        assert one._gpus.all == []
        assert len(one._book.gpus) == 16, "shares that there are stay what they are"
        one._looked.clear()
        monkeypatch.setattr(agent.inventory, "read", lambda: found[:8])
        while not one._gpus.all:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario())
    assert caplog.text.count("does not take a list of 147456 gemlet.dev/memory-units") == 1
    assert "offer the memory of this node fewer times" in caplog.text


def test_a_lost_gpu_costs_no_other_share_and_one_that_comes_late_is_told_of(run, tmp_path, monkeypatch):
    """With device nodes that gemlet passes: the share of a GPU that NVML did not show ended the agent at each start."""
    monkeypatch.setattr(agent, "INVENTORY_SECONDS", 0.01)
    monkeypatch.setattr(agent, "RESTORE_SECONDS", 0.01)
    monkeypatch.setattr(agent.NvmlInventory, "devices", lambda _: [])
    there = [fakes.GPUS]
    monkeypatch.setattr(agent.inventory, "read", lambda: there[-1])
    options = agent.AgentOptions(
        node="n1",
        endpoint=address.explicit(tmp_path),
        api=None,
        directory=tmp_path,
        cdi=tmp_path / "cdi",
        access="nodes",
    )
    daemon = fakes.FakeDaemon()

    def started():
        one = agent.Agent(options, None)
        one._daemon = one._book._daemon = daemon
        watching, serving, restoring, *others = one.tasks()
        for other in (serving, *others):
            other.close()
        return one, watching, restoring

    def nodes(uid):
        return cdi.path_of(options.cdi, f"claim-{uid}").read_text().count('"/dev/nvidia0"')

    async def until(what):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def scenario():
        first, watching, restoring = started()
        running = [asyncio.create_task(watching), asyncio.create_task(restoring)]
        await until(lambda: first._restored)
        small = Amounts(memory=fakes.GIB, compute=1, limit=1)
        for uid, gpu in (("u1", fakes.FIRST), ("u2", fakes.SECOND)):
            await first._book.open(fakes.claim_share(uid, (gpu,), granted=small))
        assert nodes("u1") == 1
        there.append(fakes.GPUS[1:])
        await until(lambda: first._as_restored.keys() == {fakes.SECOND})
        assert nodes("u1") == 1, "it is known where it was"
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

        second, watching, restoring = started()
        running = [asyncio.create_task(watching), asyncio.create_task(restoring)]
        await until(lambda: second._restored or running[1].done())
        assert second._restored
        assert (nodes("u1"), len(daemon.opened)) == (0, 2)
        there.append(fakes.GPUS)
        await until(lambda: len(second._as_restored) == 2)
        assert nodes("u1") == 1
        assert daemon.opened["default/u1"][2] == 0
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    run(scenario())


def test_a_gpu_that_has_the_number_of_a_lost_one_takes_its_name(run, tmp_path):
    """As after `nvidia-smi drain`. The apiserver refused the slice, which had one name twice, and all that came after:
    a lost GPU never got its taint."""
    options = agent.AgentOptions(
        node="n1", endpoint=address.explicit(tmp_path), api=None, directory=tmp_path, cdi=tmp_path / "cdi", face="dra"
    )
    one = agent.Agent(options, None)
    first, second, third = (dataclasses.replace(fakes.GPUS[0], index=each, uuid=f"GPU-{each}") for each in range(3))

    async def scenario():
        await one._gpus.set([first, second, third])
        moved = dataclasses.replace(third, index=1)
        await one._gpus.set([first, moved])
        assert [(gpu.device, gpu.uuid) for gpu in one._in_order()] == [("gpu-0", "GPU-0"), ("gpu-1", "GPU-2")]
        health = one._dra._health()
        assert [(each.device.device_name, each.message) for each in health.devices] == [("gpu-0", ""), ("gpu-1", "")]
        assert len(one._gpus.all) == 3, "the pods of the lost one are still told of"
        await one._gpus.set([])
        assert sorted(gpu.device for gpu in one._in_order()) == ["gpu-0", "gpu-1"]

    run(scenario())


def test_what_could_not_be_written_is_written_when_it_can(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(agent, "RESTORE_SECONDS", 0.01)
    options = agent.AgentOptions(node="n1", endpoint=address.explicit(tmp_path), api=None, directory=tmp_path)
    one = agent.Agent(options, None)
    one._daemon = one._book._daemon = fakes.FakeDaemon()
    one._book.gpus = {gpu.uuid: gpu for gpu in fakes.GPUS}
    one._looked.set()
    _, _, restoring, *_ = tasks = one.tasks()
    for other in tasks:
        if other is not restoring:
            other.close()
    save, full, tries = checkpoint.save, [True], []

    def tried(*given):
        tries.append(given)
        if full[0]:
            raise OSError(28, "No space left on device")
        save(*given)

    async def scenario():
        share = fakes.claim_share()
        await one._book.open(share)
        monkeypatch.setattr(checkpoint, "save", tried)
        with pytest.raises(OSError, match="No space left"):
            await one._book.close(share.id)
        task = asyncio.create_task(restoring)
        while len(tries) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert one._restored
        full[0] = False
        while checkpoint.load(tmp_path / "checkpoint.json").shares:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario())
    assert caplog.text.count("shares: [Errno 28]") == 1


def test_what_is_left_open_is_tried_again_without_a_daemon_and_counted(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(agent, "RESTORE_SECONDS", 0.01)
    options = agent.AgentOptions(
        node="n1", endpoint=address.explicit(tmp_path), api=None, directory=tmp_path, cdi=tmp_path / "cdi"
    )
    one = agent.Agent(options, None)
    one._daemon = one._book._daemon = daemon = fakes.FakeDaemon()
    one._book.gpus = {gpu.uuid: gpu for gpu in fakes.GPUS}
    tasks = one.tasks()
    (keeping_out,) = [task for task in tasks if task.__name__ == "_keep_out"]
    for other in tasks:
        if other is not keeping_out:
            other.close()

    async def figures():
        text = (await one._metrics()).text
        return [line.split()[1] for line in text.splitlines() if line.startswith(("gemlet_node_pods", "gemlet_node_s"))]

    async def scenario():
        await one._book.open(fakes.claim_share("u1"))
        await one._book.open(fakes.claim_share("u2"))
        one._permits.say("claim-u1", "p", None)
        stuck = fakes.Stuck(tmp_path / "permits" / "claim-u1", monkeypatch)
        one._permits.say("claim-u1", "p", "is hostile now")
        assert await figures() == ["2.0", "1.0", "1.0", "0.0"]
        daemon.down = True
        task = asyncio.create_task(keeping_out)
        while stuck.tries < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stuck.mended = True
        while one._permits.left_open():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        daemon.down = False
        assert await figures() == ["2.0", "1.0", "0.0", "0.0"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario())
    assert caplog.text.count("which pods may start in their shares cannot be written") == 1
