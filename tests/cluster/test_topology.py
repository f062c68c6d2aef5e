"""A node of eight GPUs on two NVLink islands: pairs on one, singles where a whole GPU or island is broken already.

With claims the agent says it by constraints and by the order of the devices in its slice, with slots by what it answers
to GetPreferredAllocation.
"""

from __future__ import annotations

import json

import pytest

from gemlet.kube import placement
from tests.cluster.cluster import pod
from tests.cluster.face import devices, only_dra
from tests.cluster.processes import eventually
from tests.cluster.reading import lines

WHOLE = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "100"}
NODE = {"simulatedGpus": 8, "simulatedIslands": 2, "devicePlugin": {"slotsPerGpu": 1}}


@pytest.fixture(scope="module", params=["pack", "spread"])
def packing(request, cluster, face):
    """The node with eight GPUs, taken in one order."""
    cluster.gemlet.upgrade(**NODE, packing=request.param)
    eventually(lambda: face.offered(cluster) == 8, "eight GPUs")
    yield request.param
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    cluster.gemlet.upgrade()
    face.ready(cluster)


def start(cluster, name, **more):
    """A pod on whole GPUs; returns the islands that they are on."""
    cluster.create(pod(name, "sleep", "1000", annotations=WHOLE | {f"gemlet.dev/{key}": more[key] for key in more}))
    eventually(lambda: cluster.phase(name) == "Running", f"start of {name}")
    return islands(cluster, name)


def shares(cluster):
    return json.loads((cluster.node.fixed / "var/lib/gemlet/checkpoint.json").read_text())["shares"]


def islands(cluster, name):
    """By UUIDs: the first half of them is one island."""
    order = cluster.gemlet.execute(
        cluster.node, "agent", "python3.11", "-c",
        "import os; from gemlet.daemon import address;"
        "os.environ['GEMLET_SIM_DIR'] = str(address.explicit('/run/gemlet').machine);"
        "from gemlet.daemon.inventory import NvmlInventory; NvmlInventory(simulated=True).devices();"
        "from gemlet.kube import inventory; print(*(gpu.uuid for gpu in inventory.read()))",
    ).split()  # fmt: skip
    (share,) = [share for share in shares(cluster) if share["pod"]["name"] == name]
    return [order.index(uuid) * 2 // len(order) for uuid in share["gpus"]]


def settled(cluster, face, packing):
    """Waits until the slice has the order that follows from what is taken, a moment after a pod has started."""
    if face.name != "dra":
        return  # the kubelet asks each time

    def up_to_date():
        listed = {device["attributes"]["uuid"]["string"]: device for device in devices(cluster)}
        by_number = sorted(listed, key=lambda uuid: listed[uuid]["attributes"]["index"]["int"])
        own = {uuid: listed[uuid]["attributes"]["nvlink"]["string"] for uuid in by_number}
        taken = {uuid: 1.0 for share in shares(cluster) for uuid in share["gpus"]}
        return list(listed) == placement.order(own, taken, packing)

    eventually(up_to_date, "the slice in order")


def test_singles_break_one_island_or_both(cluster, face, packing):
    taken = []
    for number in range(4):
        taken += start(cluster, f"s{number}")
        settled(cluster, face, packing)
    assert taken == ([taken[0]] * 4 if packing == "pack" else [taken[0], 1 - taken[0]] * 2)


@only_dra
def test_a_claim_of_four_gpus_gets_a_whole_island_after_singles(cluster, face, packing):
    if packing == "spread":
        pytest.skip("spreading breaks all islands")
    (first,) = start(cluster, "single")
    assert start(cluster, "four", gpus="4", together="nvlink") == [1 - first] * 4
    settled(cluster, face, packing)
    assert start(cluster, "second") == [first]
    cluster.create(
        pod("late", "sleep", "1000", annotations=WHOLE | {"gemlet.dev/gpus": "4", "gemlet.dev/together": "nvlink"})
    )
    eventually(lambda: face.waits in cluster.events("late"), "the event that says why")


@only_dra
@pytest.mark.parametrize("together", ["nvlink", "pcie", "numa"])
def test_pairs_land_on_one_island(cluster, face, packing, together):
    """Each island of the simulated node is at a processor of its own, with a root complex."""
    for number in range(4):
        first, second = start(cluster, f"pair{number}", gpus="2", together=together)
        assert first == second
    assert len(shares(cluster)) == 4


def test_a_program_sees_its_gpu(cluster, face, packing):
    cluster.create(pod("a", "probe", annotations=WHOLE))
    eventually(lambda: lines(cluster, "a", "total") == ["16384"], "first CUDA call")
