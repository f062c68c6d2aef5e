"""More memory than a GPU has, in pods: within a share, and between shares. The GPUs are simulated."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import pod
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines, metrics, shares

MEMORY = {"gemlet.dev/memory": "3Gi", "gemlet.dev/compute": "25", "gemlet.dev/compute-limit": "100"}
CAPACITY = """
[daemon]
host_memory = "16GiB"
[[devices]]
index = 0
capacity = "3GiB"
[[devices]]
index = 1
capacity = "3GiB"
"""


def test_a_share_that_is_not_all_resident_swaps(cluster, face):
    """Two programs of a pod that together need more of the GPU than they may have at a time; both get on."""
    both = "probe 1000 1500 & probe 1000 1500; wait"
    asked = SHARE | {"gemlet.dev/resident": "3Gi", "gemlet.dev/compute-limit": "100"}
    cluster.create(pod("a", "sh", "-c", both, annotations=asked))
    eventually(lambda: len(lines(cluster, "a", "held")) == 2, "both hold their memory")
    eventually(lambda: metrics(cluster, "a").get("memory_swapped_bytes", 0) > 2**28, "memory on the host")
    assert metrics(cluster, "a")["memory_resident_limit_bytes"] == 3 * 2**30
    count = len(shares(cluster, "a"))
    eventually(lambda: len(shares(cluster, "a")) >= count + 6, "more work")


@pytest.fixture
def oversubscribed(cluster, face):
    """The cluster with twice the memory on offer, 3 GiB of which are used of each GPU at a time."""
    cluster.gemlet.upgrade(memoryOversubscription=2, daemon={"configuration": CAPACITY})
    face.ready(cluster)
    yield cluster
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    cluster.gemlet.upgrade()
    face.ready(cluster)


def test_pods_take_turns_with_a_gpu_that_is_too_small_for_both(oversubscribed, face):
    for name in ("a", "b"):
        oversubscribed.create(pod(name, "probe", "1000", "1200", annotations=MEMORY))
    for name in ("a", "b"):
        eventually(lambda name=name: lines(oversubscribed, name, "held"), "both hold their memory")
        assert lines(oversubscribed, name, "total") == ["3072"]
    count = {name: len(shares(oversubscribed, name)) for name in ("a", "b")}
    eventually(
        lambda: sum(metrics(oversubscribed, name).get("memory_swapped_bytes", 0) for name in ("a", "b")) > 0,
        "memory on the host",
    )
    for name in ("a", "b"):
        eventually(lambda name=name: len(shares(oversubscribed, name)) >= count[name] + 2, "work of both")


def test_without_a_capacity_nothing_is_offered(cluster, face):
    """The GPU would be full before the shares are."""
    cluster.gemlet.upgrade(wait=False, memoryOversubscription=2)
    try:
        said = "the daemon has no capacity for device 0, whose memory is offered more than once"
        eventually(lambda: said in cluster.gemlet.log("agent", cluster.node), "words")
        eventually(lambda: face.offered(cluster) == 0, "nothing on offer")
    finally:
        cluster.gemlet.upgrade()
        face.ready(cluster)
