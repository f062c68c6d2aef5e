"""A thousand pods on ten nodes of eight GPUs, placed by the real scheduler.

The nodes are objects without a kubelet, so no container starts: what is measured is placement.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter

import pytest

from gemlet.kube import slices
from gemlet.kube.admission import template, template_name
from gemlet.kube.ask import Ask
from gemlet.kube.inventory import Gpu
from gemlet.kube.request import Amounts
from tests.cluster.cluster import pod
from tests.cluster.face import only_dra
from tests.cluster.processes import eventually

NODES, GPUS, PODS = 10, 8, 1000
SIZES = (4, 5, 8, 10, 12)  # percent: together about what there is
GIB = 1024**3
TAINT = {"key": "load", "value": "test", "effect": "NoSchedule"}  # keeps all other pods away


@pytest.fixture(scope="module")
def nodes(cluster, face):
    """Ten nodes, as their kubelets and agents would show them."""
    names = [f"load{number}" for number in range(NODES)]
    for name in names:
        cluster.create({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"load": "test"}},
            "spec": {"taints": [TAINT]},
        })  # fmt: skip
        room = {"cpu": "192", "memory": "2Ti", "pods": "250"}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps({"status": status}))
        gpus = [Gpu(index=n, uuid=f"GPU-{name}-{n}", name="load", memory=80 * GIB) for n in range(GPUS)]
        owner = cluster.get("node", name)
        cluster.create(slices.resource_slice(name, [slices.device(gpu) for gpu in gpus], generation=1, owner=owner))
    cluster.create(*(template(ask(size), "default") for size in SIZES))
    yield names
    cluster.kubectl("delete", "nodes", *names)
    cluster.kubectl("delete", "resourceclaimtemplates", "--all")
    eventually(lambda: not cluster.get("resourceclaims")["items"], "the end of the claims")


def ask(size):
    return Ask(amounts=Amounts(memory=80 * GIB * size // 100 >> 20 << 20, compute=size, limit=size))


def waiting(number, size):
    made = pod(f"load-{number}", "sleep", "1000")
    made["metadata"]["labels"] = {"load": "test"}
    made["spec"] |= {
        "nodeSelector": {"load": "test"},
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": [{"name": "gemlet", "resourceClaimTemplateName": template_name(ask(size))}],
    }
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gemlet"}]}
    return made


def placed(cluster):
    selected = ("-l", "load=test", "--field-selector", "spec.nodeName!=", "-o", "name")
    return len(cluster.kubectl("get", "pods", *selected).split())


def undecided(cluster):
    """How many pods are on no node and have not been found to fit nowhere."""
    each = '{range .items[*]}{.spec.nodeName}{.status.conditions[?(@.type=="PodScheduled")].reason}{";"}{end}'
    said = cluster.kubectl("get", "pods", "-l", "load=test", "-o", f"jsonpath={each}").split(";")[:-1]
    return said.count("")


def writes(cluster):
    """Requests that changed something, by resource."""
    text = cluster.kubectl("get", "--raw", "/metrics")
    pattern = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
    found = Counter()
    for labels, count in pattern.findall(text):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if named["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
            found[named["resource"], named["subresource"]] += int(float(count))
    return found


def first_fit(sizes):
    """How many of ``sizes`` fit, in this order, each on the first GPU with room."""
    free = [100] * (NODES * GPUS)
    count = 0
    for size in sizes:
        place = next((number for number, left in enumerate(free) if left >= size), None)
        if place is not None:
            free[place] -= size
            count += 1
    return count


@pytest.fixture
def ended(cluster, nodes):
    """No kubelet ends these pods."""
    yield
    cluster.kubectl("delete", "pods", "-l", "load=test", "--force", "--grace-period=0", "--wait=false")
    eventually(lambda: not cluster.kubectl("get", "pods", "-l", "load=test", "-o", "name"), "their end")


@only_dra
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ended")
def test_a_thousand_pods_are_placed_and_none_too_many(cluster, face, nodes):
    sizes = random.Random(1).choices(SIZES, k=PODS)
    before = writes(cluster)
    begun = time.monotonic()
    for start in range(0, PODS, 100):
        cluster.create(*(waiting(number, sizes[number]) for number in range(start, start + 100)))
    made = time.monotonic() - begun
    counts, last = [placed(cluster)], made

    def decided():
        counts.append(placed(cluster))
        nonlocal last
        last = time.monotonic() - begun if counts[-1] != counts[-2] else last
        return counts[-1] == counts[-2] and undecided(cluster) == 0

    eventually(decided, "the scheduler's word on each pod", 600)
    free = Counter({(name, f"gpu-{n}"): 100 for name in nodes for n in range(GPUS)})
    for claim in cluster.get("resourceclaims")["items"]:
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", []):
            free[result["pool"], result["device"]] -= int(result["consumedCapacity"]["compute"])
    count, most = counts[-1], max(free.values())
    taken = sum(100 - left for left in free.values()) / len(free)
    changed = writes(cluster) - before
    events = len(cluster.kubectl("get", "events", "--field-selector", "reason=FailedScheduling", "-o", "name").split())
    each = {"/".join(filter(None, what)): round(number / count, 1) for what, number in changed.most_common(8)}
    asked = sum(sizes) / NODES / GPUS
    print(
        f"\n{count} of {PODS} pods, which ask for {asked:.1f} % of the GPUs, placed in {last:.0f} s: {count / last:.1f}"
        f" a second; made in {made:.0f} s; first fit places {first_fit(sizes)}\n{taken:.1f} % of the GPUs are taken,"
        f" at most {most} % of one are free; {events} events of waiting\nwrites for each: {each}",
        file=sys.stderr,
    )
    assert min(free.values()) >= 0, "no GPU is given out twice"
    spec = cluster.get("pods", "-l", "load=test")["items"]
    left = [sizes[int(item["metadata"]["name"].rpartition("-")[2])] for item in spec if "nodeName" not in item["spec"]]
    assert all(size > most for size in left), "who waits would fit nowhere"
    assert count >= 0.97 * first_fit(sizes)
