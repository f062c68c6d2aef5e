"""Kueue's real controllers over shares: what it counts, what waits, and that a share is what was asked for."""

from __future__ import annotations

import pytest

from tests.cluster.claims import template
from tests.cluster.cluster import pod
from tests.cluster.kubernetes import OLD
from tests.cluster.kueue import CLAIMED, Kueue, documented, queue
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines

pytestmark = pytest.mark.skipif(OLD, reason="Kueue 0.17 needs a newer Kubernetes")
COUNTED = {"slots": "gemlet.dev/share", "dra": CLAIMED}
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
UNITS = "gemlet.dev/compute-units"


@pytest.fixture(scope="module")
def kueue(cluster, face):
    made = Kueue(cluster)
    made.install()
    yield made
    made.uninstall()


@pytest.fixture
def two(kueue, cluster, face):
    """A queue of two shares."""
    kueue.queue(**{COUNTED[face.name]: 2})
    yield kueue
    cluster.kubectl("delete", "jobs", "--all", "--cascade=foreground")
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    cluster.kubectl("delete", "resourceclaimtemplates", "quarter", "--ignore-not-found")
    kueue.drop()


def job(face, name):
    """Of one pod with a share, which the job's template says: Kueue counts before there is a pod."""
    spec = pod(name, "probe", "1000")["spec"]
    (container,) = spec["containers"]
    if face.name == "dra":
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    else:
        container["resources"] = {"limits": {"gemlet.dev/share": "1"}}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": QUEUE},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"annotations": {}}, "spec": spec}},
    }  # fmt: skip


def pods_of(cluster, name):
    return [item["metadata"]["name"] for item in cluster.get("pods", "-l", f"job-name={name}")["items"]]


def at_work(cluster):
    """The jobs whose pods have made their first CUDA call."""
    return [name for name in "abc" if any(lines(cluster, each, "total") for each in pods_of(cluster, name))]


def test_the_queue_of_the_document_is_the_one_that_is_tested():
    assert documented() == queue({COUNTED["slots"]: 2})


def test_a_job_waits_for_its_queue(cluster, face, two):
    if face.name == "dra":
        cluster.create(template("quarter"))
    cluster.create(*(job(face, name) for name in "abc"))
    eventually(lambda: len(at_work(cluster)) == 2, "two jobs at work")
    running = at_work(cluster)
    (waiting,) = set("abc") - set(running)
    assert cluster.get("job", waiting)["spec"]["suspend"] is True
    assert pods_of(cluster, waiting) == []
    said = two.workload(waiting)["status"]["conditions"]
    assert any("insufficient unused quota" in each["message"] for each in said), said
    cluster.kubectl("delete", "job", running[0], "--cascade=foreground")
    eventually(lambda: waiting in at_work(cluster), "its turn")


def asking(name, **annotations):
    """A pod of a queue that says by annotations what it wants, as any pod of gemlet's."""
    made = pod(name, "probe", "1000", annotations=SHARE | annotations)
    made["metadata"]["labels"] |= QUEUE
    return made


def gated(cluster, name):
    return bool(cluster.get("pod", name)["spec"].get("schedulingGates"))


def test_a_pod_with_annotations_waits_for_its_queue(cluster, face, two):
    """Kueue counts what gemlet's webhook has made of it."""
    for name in "ab":
        cluster.create(asking(name))
        eventually(lambda name=name: lines(cluster, name, "total") == ["16384"], f"first CUDA call of {name}")
    cluster.create(asking("c"))
    eventually(lambda: two.workload("c").get("status", {}).get("conditions"), "Kueue's word")
    assert gated(cluster, "c")
    cluster.delete("a")
    eventually(lambda: lines(cluster, "c", "total") == ["16384"], "its turn")


@pytest.fixture
def fifty(kueue, cluster, face):
    """A queue of half a GPU's time, the GPUs being offered by units."""
    if face.name != "slots":
        pytest.skip("Kueue counts claims, not their amounts")
    cluster.gemlet.upgrade(devicePlugin={"resources": "units"})
    eventually(lambda: cluster.allocatable(UNITS) == 200, "units")
    kueue.queue(**{UNITS: 50, "gemlet.dev/memory-units": 1000})
    yield kueue
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    kueue.drop()
    cluster.gemlet.upgrade()
    face.ready(cluster)


def test_units_are_counted_by_amount(cluster, face, fifty):
    cluster.create(asking("a", **{"gemlet.dev/compute": "30"}))
    eventually(lambda: lines(cluster, "a", "total") == ["16384"], "first CUDA call")
    cluster.create(asking("b", **{"gemlet.dev/compute": "25"}))
    eventually(lambda: fifty.workload("b").get("status", {}).get("conditions"), "Kueue's word")
    assert gated(cluster, "b")
    cluster.create(asking("c", **{"gemlet.dev/compute": "20"}))
    eventually(lambda: lines(cluster, "c", "total") == ["16384"], "what still fits")
    assert gated(cluster, "b")
