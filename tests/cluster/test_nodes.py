"""Two and three nodes: each further one is a kubelet with a network, a containerd and simulated GPUs of its own."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter

import pytest

from tests.cluster.cluster import pod
from tests.cluster.face import only_slots
from tests.cluster.kubernetes import PACKING
from tests.cluster.node import Node
from tests.cluster.processes import LIMIT, eventually
from tests.cluster.reading import SHARE

SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"gpu": "shared"}},
}


@contextlib.contextmanager
def added(cluster, face, number):
    """One more node, with what the DaemonSet starts there."""
    begun = time.monotonic()
    node = Node(number, cluster.pki)
    try:
        node.start(cluster.images)
        eventually(lambda: cluster.ready(node.name), f"{node.name} ready")
        face.ready(cluster, node.name)
        print(f"\n{node.name} offers its GPUs after {time.monotonic() - begun:.1f} s", file=sys.stderr)
        yield node
    finally:
        node.stop()
        cluster.kubectl("delete", "node", node.name, "--ignore-not-found")
        cluster.kubectl(
            "-n", "gemlet-system", "delete", "pod", "--field-selector", f"spec.nodeName={node.name}", "--force",
            "--grace-period=0",
        )  # fmt: skip


@pytest.fixture(scope="module")
def second(cluster, face):
    with added(cluster, face, 2) as node:
        yield node


def start(cluster, count, **spec):
    """So many pods that show what they got; returns how many are on each node."""
    names = [f"p{number}" for number in range(count)]
    for name in names:
        entry = pod(name, "probe", "1000", annotations=SHARE)
        entry["spec"] |= spec
        cluster.create(entry)
    eventually(lambda: all("total 16384" in cluster.log(name) for name in names), "their first CUDA calls")
    return Counter(cluster.get("pod", name)["spec"]["nodeName"] for name in names)


def gpus(cluster, node):
    """How many shares each GPU of a node has."""
    shares = json.loads((node.fixed / "var/lib/gemlet/checkpoint.json").read_text())["shares"]
    return sorted(Counter(uuid for share in shares for uuid in share["gpus"]).values())


def test_pods_spread_over_nodes_by_a_constraint(cluster, second):
    assert start(cluster, 4, topologySpreadConstraints=[SPREAD]) == {"n1": 2, "n2": 2}
    assert gpus(cluster, second) == [2], "the agent packs: both are on one GPU"


@only_slots
def test_pods_fill_a_node_before_they_take_the_next(cluster, second):
    """The stock scheduler with a profile that scores by what is taken of gemlet.dev/share."""
    placed = start(cluster, 10, schedulerName=PACKING)
    assert sorted(placed.values()) == [2, 8], placed


def test_a_node_that_is_drained_keeps_no_share(cluster, second):
    assert start(cluster, 4, topologySpreadConstraints=[SPREAD]) == {"n1": 2, "n2": 2}
    try:
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")  # pods that nothing starts again
        cluster.kubectl("drain", second.name, *options, f"--timeout={LIMIT:.0f}s")
        left = cluster.get("pods")["items"]
        assert [item["spec"]["nodeName"] for item in left] == ["n1", "n1"]
        eventually(lambda: not gpus(cluster, second), "the end of its shares")
        cluster.gemlet.wait()  # for the webhook's pods that were there
        cluster.delete(*(item["metadata"]["name"] for item in left))
        assert start(cluster, 8) == {"n1": 8}
    finally:
        cluster.kubectl("uncordon", second.name)


def test_a_third_node_takes_its_part(cluster, face, second):
    with added(cluster, face, 3):
        placed = start(cluster, 6, topologySpreadConstraints=[SPREAD])
        assert placed == {"n1": 2, "n2": 2, "n3": 2}
        cluster.delete(*(f"p{number}" for number in range(6)))
