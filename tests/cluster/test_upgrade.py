"""gemlet replaced and taken away under running pods."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import pod
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines, shares
from tests.cluster.release import NAMESPACE, helm
from tests.cluster.witness import witnessed

SMALL = {"gemlet.dev/memory": "2Gi", "gemlet.dev/compute": "3"}
WORKING = 4
BEFORE = os.environ.get("GEMLET_CLUSTER_BEFORE")  # a checkout of the release before, with its image


def containers(cluster):
    return {
        item["metadata"]["name"]: (status["containerID"], status["restartCount"])
        for item in cluster.get("pods")["items"]
        for status in item["status"]["containerStatuses"]
    }


@contextlib.contextmanager
def undisturbed(cluster, face):
    """Fifty pods with claims, eight with slots; four of them work. What is done here replaces gemlet under them.

    A program waits for the new daemon, and fails in the end; a busy machine may need longer, so that it is started
    again here. It must not run without limits at any time.
    """
    names = [f"p{number}" for number in range(50 if face.name == "dra" else 8)]
    for number, name in enumerate(names):
        command = ("sh", "-c", "while true; do probe 1000; done") if number < WORKING else ("sleep", "1000")
        cluster.create(pod(name, *command, annotations=SMALL))
    eventually(lambda: cluster.phases() == {"Running"}, "all of them")
    working = names[:WORKING]
    eventually(lambda: all(len(shares(cluster, name)) >= 2 for name in working), "work")
    before = containers(cluster)
    yield
    face.ready(cluster)
    count = {name: len(shares(cluster, name)) for name in working}
    with witnessed(cluster, *working):
        eventually(lambda: all(len(shares(cluster, name)) >= count[name] + 3 for name in working), "more work")
    assert containers(cluster) == before, "none was restarted"
    failed = sum(cluster.log(name).count("error") for name in working)
    print(f"\n{failed} of {WORKING} programs did not wait long enough for the new daemon", file=sys.stderr)
    most = max(value for name in working for value in shares(cluster, name)[1:])
    assert most <= 15, "3 % is never much more; without limits it would be half of the GPU"


def test_all_parts_are_replaced_under_running_pods(cluster, face):
    with undisturbed(cluster, face):
        parts = ("daemonset/gemlet-agent", "deployment/gemlet-webhook")
        cluster.kubectl("-n", NAMESPACE, "rollout", "restart", *parts)
        cluster.gemlet.wait()


@pytest.mark.skipif(not BEFORE, reason="without the image of the release before: `make cluster-upgrade-test`")
def test_the_release_before_is_upgraded_under_running_pods(cluster, face):
    """With its own chart and image, on a node that has never seen another."""
    before = Path(BEFORE)
    cluster.gemlet.uninstall()
    empty(cluster.node.fixed / "var/lib/gemlet")
    cluster.node.load(before / "build/image/gemlet.tar")
    cluster.gemlet.use(face.values, before / "packaging/chart")
    face.ready(cluster)
    images = used(cluster)
    with undisturbed(cluster, face):
        cluster.gemlet.upgrade()
        assert not used(cluster) & images, "all of its parts are replaced"
    # What the agent of the release before wrote of them is known to this one: it gives nothing twice, and closes all.
    names = [item["metadata"]["name"] for item in cluster.get("pods")["items"]]
    cluster.delete(*names)
    eventually(lambda: not held(cluster), "the end of their shares")
    cluster.create(pod("after", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "after", "total") == ["16384"], "a share of the new release")


def empty(directory):
    """Not removed: it is mounted where the node has it."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def used(cluster):
    """The images of gemlet's pods."""
    items = cluster.gemlet.pods("agent") + cluster.gemlet.pods("webhook")
    return {container["image"] for item in items for container in item["spec"]["containers"]}


def held(cluster):
    """The shares on the node, by its agent."""
    return json.loads((cluster.node.fixed / "var/lib/gemlet/checkpoint.json").read_text())["shares"]


def test_a_release_that_is_in_use_is_not_uninstalled(cluster, face):
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    with pytest.raises(helm.HelmError):
        cluster.gemlet.uninstall()
    # The job that refused, which names the pods.
    assert "default/a" in cluster.gemlet.log("uninstall", cluster.node)
    count = len(shares(cluster, "a"))
    eventually(lambda: len(shares(cluster, "a")) >= count + 2, "more work")
    cluster.delete("a")
    cluster.gemlet.uninstall()
    cluster.create(pod("plain", "true"))
    eventually(lambda: cluster.phase("plain") == "Succeeded", "a pod without gemlet")
    cluster.gemlet.use(face.values)
    face.ready(cluster)
    cluster.create(pod("b", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "a share of the new release")
