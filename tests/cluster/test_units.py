"""GaiaGPU's units on a real node: two resources that the kubelet gives out one after the other."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.cluster import Refused, pod
from tests.cluster.face import only_slots
from tests.cluster.processes import eventually

SHARE = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "30"}
COMPUTE, MEMORY = "gemlet.dev/compute-units", "gemlet.dev/memory-units"
pytestmark = only_slots


@pytest.fixture(scope="module")
def units(cluster, face):
    """The cluster with an agent and a webhook that offer units: `helm upgrade`."""
    cluster.gemlet.upgrade(devicePlugin={"resources": "units"})
    eventually(lambda: cluster.allocatable(COMPUTE) == 200 and cluster.allocatable("gemlet.dev/share") == 0, "units")
    yield cluster
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    cluster.gemlet.upgrade()


def words(cluster, name, word):
    return [line.split()[1] for line in cluster.log(name).splitlines() if line.startswith(word)]


def test_time_and_memory_of_one_gpu_are_one_share(units):
    units.create(pod("a", "probe", annotations=SHARE))
    eventually(lambda: words(units, "a", "total"), "first CUDA call")
    limits = units.get("pod", "a")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {COMPUTE: "30", MEMORY: "64"}
    assert words(units, "a", "total") == ["16384"]


def given(cluster):
    """What the agent has given out."""
    return json.loads((cluster.node.fixed / "var/lib/gemlet/checkpoint.json").read_text())["shares"]


def test_time_that_is_left_on_two_gpus_is_waited_for(units):
    """The scheduler and the kubelet count it together. On its node the pod says why it waits, and it starts later."""
    for name in ("a", "b"):
        units.create(pod(name, "sleep", "1000", annotations=SHARE | {"gemlet.dev/compute": "70"}))
        eventually(lambda name=name: units.phase(name) == "Running", "its start")
    units.create(pod("split", "probe", "1000", annotations=SHARE | {"gemlet.dev/compute": "50"}))
    said = re.compile(r"compute: 50 does not fit on GPU-\S+, of which 70 of 100 is taken; wait")
    eventually(lambda: said.search(units.events("split")), "an event that says why")
    assert units.phase("split") == "Pending"
    (gpu,) = [share["gpus"] for share in given(units) if share["granted"]["compute"] == 0]
    (holder,) = [share["pod"]["name"] for share in given(units) if share["gpus"] == gpu and share["pod"]["name"]]
    units.delete(holder)
    eventually(lambda: words(units, "split", "total") == ["16384"], "its first CUDA call")
    assert {share["pod"]["name"] for share in given(units)} >= {"split"}


def test_a_quota_is_of_time_and_memory(units):
    """By amount: what the pods of a namespace ask for together."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "amounts", "namespace": "default"}}
    hard = {f"requests.{COMPUTE}": "50", f"requests.{MEMORY}": "200"}
    units.apply(quota | {"spec": {"hard": hard}})
    try:
        eventually(lambda: units.get("resourcequota", "amounts").get("status", {}).get("used"), "the quota in use")
        units.create(pod("a", "sleep", "1000", annotations=SHARE))
        used = units.get("resourcequota", "amounts")["status"]["used"]
        assert used == {f"requests.{COMPUTE}": "30", f"requests.{MEMORY}": "64"}
        with pytest.raises(Refused, match="exceeded quota: amounts"):
            units.create(pod("b", "sleep", "1000", annotations=SHARE))
        units.create(pod("c", "sleep", "1000", annotations=SHARE | {"gemlet.dev/compute": "20"}))
    finally:
        units.kubectl("delete", "resourcequota", "amounts")
