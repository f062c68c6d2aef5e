"""A node that goes down and comes up with nothing but its disk, and not all of that."""

from __future__ import annotations

import json
import sys

from tests.cluster.cluster import pod
from tests.cluster.face import only_dra
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, later, lines, shares


def replicas(name):
    """A ReplicaSet of one pod."""
    made = pod(name, "probe", "1000", annotations=SHARE)
    labels = made["metadata"]["labels"] | {"set": name}
    made["spec"]["restartPolicy"] = "Always"
    template = {"metadata": {"labels": labels, "annotations": SHARE}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"set": name}}, "template": template},
    }


def started(cluster):
    """Pod by container, of those that run."""
    return {
        status["containerID"]: item["metadata"]["name"]
        for item in cluster.get("pods", "-l", "set=a")["items"]
        for status in item["status"].get("containerStatuses") or []
        if "running" in status["state"]
    }


def another_daemon(cluster, before):
    try:
        return cluster.gemlet.pid("daemon", cluster.node) != before
    except StopIteration:  # the status is of the container before
        return False


@only_dra  # of slots the kubelet alone knows whose they are: pods on such a node are to be deleted
def test_a_node_reboots_without_the_kubelets_state(cluster, face):
    """Its pods begin again, in their shares; nothing of the shares before is left."""
    cluster.apply(replicas("a"))
    try:
        before = eventually(lambda: started(cluster), "its start")
        (name,) = before.values()
        eventually(lambda: len(shares(cluster, name)) >= 2, "work")
        daemon = cluster.gemlet.pid("daemon", cluster.node)
        cluster.node.reboot()
        eventually(cluster.ready, "the node again")
        eventually(lambda: another_daemon(cluster, daemon), "another daemon")
        face.ready(cluster)
        now = eventually(
            lambda: [pod for container, pod in started(cluster).items() if container not in before], "its start"
        )
        print(f"\nthe same pod: {now == [name]}", file=sys.stderr)
        assert later(cluster, now[0]) <= 30, "held to its share"
        # The webhook's pods start again, too.
        eventually(lambda: cluster.takes(pod("b", "probe", "1000", annotations=SHARE)), "admission")
        eventually(lambda: lines(cluster, "b", "total") == ["16384"], "a new pod")
        file = cluster.node.fixed / "var/lib/gemlet/checkpoint.json"
        eventually(lambda: len(json.loads(file.read_text())["shares"]) == 2, "one share for each")
    finally:
        cluster.kubectl("delete", "replicaset", "a")
