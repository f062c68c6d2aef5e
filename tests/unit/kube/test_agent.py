"""The agent as a whole, as far as the other tests do not have it in parts."""

from __future__ import annotations

import asyncio

from gemlet.daemon import address
from gemlet.errors import DeviceError
from gemlet.kube import agent


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
