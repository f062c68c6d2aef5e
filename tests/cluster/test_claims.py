"""Claims placed by the stock scheduler: fractions by consumable capacity, selectors, constraints, taints."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from tests.cluster.claims import claiming, request, template
from tests.cluster.cluster import Refused, pod
from tests.cluster.face import devices, only_dra
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines

pytestmark = only_dra


def users(cluster, claim, *names, **container):
    """Pods that share one claim, and are restarted."""
    for name in names:
        made = pod(name, "sh", "-c", "echo here; sleep 1000", **container)
        made["spec"] |= {"restartPolicy": "Always", "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        cluster.create(made)


@pytest.fixture(autouse=True)
def no_templates(cluster):
    yield
    cluster.kubectl("delete", "resourceclaimtemplates,resourceclaims", "--all", "--wait=false")


def allocated(cluster, name):
    """(device, consumed capacity) of each device of a pod's claims; [] as long as one has none."""
    statuses = cluster.get("pod", name)["status"].get("resourceClaimStatuses") or []
    found = []
    for status in statuses:
        claim = cluster.get("resourceclaim", status["resourceClaimName"])
        allocation = (claim.get("status") or {}).get("allocation")
        if not allocation:
            return []
        found += [(result["device"], result["consumedCapacity"]) for result in allocation["devices"]["results"]]
    return found


def run(cluster, name, *templates):
    cluster.create(claiming(pod(name, "probe", "1000"), *templates))
    eventually(lambda: lines(cluster, name, "total"), f"first CUDA call of {name}")


def sleep(cluster, name, *templates):
    """A pod that outlives a failure of its GPU."""
    cluster.create(claiming(pod(name, "sleep", "1000"), *templates))
    eventually(lambda: cluster.phase(name) == "Running", f"start of {name}")


def test_the_scheduler_adds_up_what_claims_consume(cluster, face):
    """E7: 25 and 50 on one GPU, a third of 50 on the other, a fourth of 60 waits and says why."""
    cluster.create(*(template(f"t{part}", request(compute=str(part))) for part in (25, 50, 60)))
    for name, part in (("a", 25), ("b", 50), ("c", 50)):
        run(cluster, name, f"t{part}")
    placed = {name: allocated(cluster, name)[0] for name in "abc"}
    assert placed["a"] == (placed["b"][0], {"memory": "16Gi", "compute": "25"}), placed
    assert placed["c"][0] != placed["a"][0]
    cluster.create(claiming(pod("d", "probe", "1000"), "t60"))
    eventually(lambda: face.waits in cluster.events("d"), "the event that says why")
    assert allocated(cluster, "d") == []
    cluster.delete("b")
    eventually(lambda: lines(cluster, "d", "total") == ["16384"], "its turn")


def test_eight_claims_share_one_gpu(cluster, face):
    cluster.create(template("eighth", request(compute="12", memory="8Gi", selectors=[
        {"cel": {"expression": "device.attributes['gemlet.dev'].index == 1"}}
    ])))  # fmt: skip
    names = [f"p{number}" for number in range(8)]
    cluster.create(*(claiming(pod(name, "probe", "1000"), "eighth") for name in names))
    for name in names:
        eventually(lambda name=name: lines(cluster, name, "total") == ["8192"], "first CUDA call")
    assert {allocated(cluster, name)[0][0] for name in names} == {"gpu-1"}
    cluster.create(claiming(pod("ninth", "probe", "1000"), "eighth"))
    eventually(lambda: face.waits in cluster.events("ninth"), "the event that says why")


def test_a_selector_chooses_by_the_attributes_of_the_slice(cluster, face):
    (wanted,) = [device for device in devices(cluster) if device["attributes"]["index"]["int"] == 1]
    uuid = wanted["attributes"]["uuid"]["string"]
    chosen = [{"cel": {"expression": f"device.attributes['gemlet.dev'].uuid == '{uuid}'"}}]
    none = [{"cel": {"expression": "device.capacity['gemlet.dev'].memory.isGreaterThan(quantity('1Ti'))"}}]
    cluster.create(template("one", request(selectors=chosen)), template("none", request(selectors=none)))
    run(cluster, "a", "one")
    assert allocated(cluster, "a")[0][0] == "gpu-1"
    cluster.create(claiming(pod("b", "probe"), "none"))
    eventually(lambda: face.waits in cluster.events("b"), "the event that says why")


def test_a_claim_of_several_gpus_is_one_share(cluster, face):
    cluster.create(template("two", request(count=2), constraints=[{"distinctAttribute": "gemlet.dev/uuid"}]))
    run(cluster, "a", "two")
    assert Counter(device for device, _ in allocated(cluster, "a")) == {"gpu-0": 1, "gpu-1": 1}
    assert lines(cluster, "a", "total") == ["16384"]


def test_requests_of_one_claim_are_one_share(cluster, face):
    """Where each GPU is to be chosen by selectors of its own."""
    index = "device.attributes['gemlet.dev'].index"
    asked = [
        request(name, selectors=[{"cel": {"expression": f"{index} == {number}"}}])
        for number, name in enumerate(("first", "second"))
    ]
    cluster.create(template("both", *asked, constraints=[{"distinctAttribute": "gemlet.dev/uuid"}]))
    run(cluster, "a", "both")
    assert sorted(device for device, _ in allocated(cluster, "a")) == ["gpu-0", "gpu-1"]
    assert lines(cluster, "a", "total") == ["16384"]


def test_each_container_of_a_pod_has_a_share_of_its_own(cluster, face):
    cluster.create(template("small"), template("large", request(memory="32Gi", compute="50")))
    both = claiming(pod("both", "probe", "1000"), "small")
    (first,) = both["spec"]["containers"]
    second = first | {"name": "d", "resources": {"claims": [{"name": "large"}]}}
    both["spec"]["containers"].append(second)
    both["spec"]["resourceClaims"].append({"name": "large", "resourceClaimTemplateName": "large"})
    cluster.create(both)
    eventually(lambda: sorted(lines(cluster, "both", "total")) == ["16384", "32768"], "two first CUDA calls")


def test_two_shares_of_one_container_are_refused_with_a_hint(cluster, face):
    cluster.create(template("one"), template("other"))
    cluster.create(claiming(pod("a", "probe"), "one", "other"))
    eventually(lambda: "are both shares of GPUs; ask for several GPUs in one claim" in cluster.events("a"), "event")


def test_amounts_that_no_gpu_has_are_refused_or_wait(cluster, face):
    """The policy of the slice's capacities: at least 256 MiB, whole MiB, whole percent."""
    cluster.create(
        template("much", request(memory="1Ti")),
        template("odd", request(memory="1500000Ki", compute="1500m")),
    )
    cluster.create(claiming(pod("much", "probe"), "much"))
    eventually(lambda: face.waits in cluster.events("much"), "the event that says why")
    run(cluster, "odd", "odd")
    ((_, consumed),) = allocated(cluster, "odd")
    assert consumed == {"memory": "1465Mi", "compute": "2"}, "rounded up to the step"


def test_annotations_of_a_second_pod_use_the_same_template(cluster, face):
    for name in ("a", "b"):
        cluster.create(pod(name, "probe", "1000", annotations=SHARE))
        eventually(lambda name=name: lines(cluster, name, "total") == ["16384"], "first CUDA call")
    assert len(cluster.get("resourceclaimtemplates")["items"]) == 1


def test_units_are_on_one_gpu_or_wait(cluster, face):
    """GaiaGPU's pods: time that is left on two GPUs together is not given to one container."""
    units = {"gemlet.dev/memory-units": "64"}
    for name, part in (("a", 70), ("b", 70), ("c", 50)):
        limits = units | {"gemlet.dev/compute-units": str(part)}
        cluster.create(pod(name, "probe", "1000", resources={"limits": limits}))
    for name in ("a", "b"):
        eventually(lambda name=name: lines(cluster, name, "total") == ["16384"], f"first CUDA call of {name}")
    eventually(lambda: face.waits in cluster.events("c"), "the event that says why")
    assert cluster.phase("c") == "Pending"
    cluster.delete("b")
    eventually(lambda: lines(cluster, "c", "total") == ["16384"], "its turn")


def test_a_template_that_is_deleted_is_made_again(cluster, face):
    """By hand, or with a namespace that comes back under its name."""
    cluster.create(pod("a", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "a", "total"), "first CUDA call")
    cluster.delete("a")
    cluster.kubectl("delete", "resourceclaimtemplates", "--all")
    cluster.create(pod("b", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "first CUDA call")


def test_of_one_claim_s_pods_only_those_start_that_stay_in_the_share(cluster, face):
    """The kubelet has it prepared for the first, and asks nobody about the next."""
    claim = template("both") | {"kind": "ResourceClaim"}
    cluster.create(claim | {"spec": claim["spec"]["spec"]})
    users(cluster, "both", "first")
    eventually(lambda: cluster.phase("first") == "Running", "start of the first")
    agent = cluster.gemlet.pid("agent", cluster.node)
    os.kill(agent, signal.SIGSTOP)
    try:  # what nobody has looked at waits
        users(cluster, "both", "next")
        users(cluster, "both", "hostile", env=[{"name": "LD_PRELOAD", "value": "/x.so"}])
        for name in ("next", "hostile"):
            eventually(
                lambda name=name: "container created" in cluster.events(name).lower(), "a container that is to start"
            )
    finally:
        os.kill(agent, signal.SIGCONT)
    eventually(lambda: cluster.phase("next") == "Running", "start of the next")
    eventually(lambda: "; its containers do not start" in cluster.events("hostile"), "the agent's event")
    eventually(
        lambda: "does not start in its share: gemlet: spec.containers[0].env[LD_PRELOAD]" in cluster.events("hostile"),
        "the runtime's words",
    )
    users(cluster, "both", "last")
    eventually(lambda: cluster.phase("last") == "Running", "start of one more")
    assert cluster.log("hostile") == ""
    said = json.loads(cluster.gemlet.execute(cluster.node, "agent", "gemlet", "status", "--node", "-o", "json"))
    (share,) = [share for share in said["shares"] if share["claim"] == ["default", "both"]]
    assert list(share["refused"]) == [cluster.get("pod", "hostile")["metadata"]["uid"]]


def test_admin_access_is_refused(cluster, face):
    """By the apiserver in a namespace without the label, and by the node in one that has it: a share of no amount."""
    admin = template("admin", request(adminAccess=True))
    with pytest.raises(Refused, match="admin access"):
        cluster.create(admin)
    cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    try:
        cluster.create(admin, claiming(pod("a", "probe"), "admin"))
        eventually(lambda: "adminAccess: is not supported; leave adminAccess out" in cluster.events("a"), "event")
    finally:
        cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access-")


def test_a_gpu_that_fails_takes_no_more_pods_and_says_so(cluster, face):
    cluster.create(template("whole", request(compute="60")))
    sleep(cluster, "a", "whole")
    ((lost, _),) = allocated(cluster, "a")
    cluster.gemlet.lose(cluster.node, int(lost.removeprefix("gpu-")))
    try:
        eventually(lambda: face.offered(cluster) == 1, "a taint")
        (taint,) = next(device["taints"] for device in devices(cluster) if device["name"] == lost)
        assert (taint["key"], taint["effect"]) == ("gemlet.dev/failed", "NoSchedule")
        run(cluster, "b", "whole")
        assert allocated(cluster, "b")[0][0] != lost
        cluster.create(claiming(pod("c", "probe", "1000"), "whole"))
        eventually(lambda: face.waits in cluster.events("c"), "the event that says why")
        # What the kubelet has heard of the driver's health, by device.
        eventually(lambda: "Unhealthy" in health(cluster, "a"), "the status of the pod that has it")
        eventually(lambda: "does not answer any more" in cluster.events("a"), "an event that says so")
    finally:
        cluster.gemlet.lose(cluster.node, int(lost.removeprefix("gpu-")), lost=False)
    face.ready(cluster)


def health(cluster, name):
    statuses = cluster.get("pod", name)["status"]["containerStatuses"]
    return [
        resource["health"]
        for status in statuses
        for entry in status.get("allocatedResourcesStatus") or []
        for resource in entry["resources"]
    ]


def test_a_failed_gpu_ends_its_pods_where_that_is_asked_for(cluster, face):
    cluster.gemlet.upgrade(failedGpus="NoExecute")
    face.ready(cluster)
    cluster.create(template("whole", request(compute="60")))
    sleep(cluster, "a", "whole")
    sleep(cluster, "b", "whole")
    ((lost, _),) = allocated(cluster, "a")
    try:
        cluster.gemlet.lose(cluster.node, int(lost.removeprefix("gpu-")))
        eventually(lambda: "a" not in {item["metadata"]["name"] for item in cluster.get("pods")["items"]}, "eviction")
        assert cluster.phase("b") == "Running"
    finally:
        cluster.gemlet.lose(cluster.node, int(lost.removeprefix("gpu-")), lost=False)
        cluster.gemlet.upgrade()
        face.ready(cluster)


def test_the_policy_makes_a_claim_of_a_label(cluster, face):
    """MutatingAdmissionPolicy: CEL in the apiserver, no webhook."""
    cluster.create(template("quarter"))
    try:
        cluster.gemlet.upgrade(admission={"mode": "policy"})
        labelled = pod("a", "probe", "1000")
        labelled["metadata"]["labels"]["gemlet.dev/claim-template"] = "quarter"

        def admitted():
            cluster.delete("a")
            cluster.create(labelled)
            return cluster.get("pod", "a")["spec"].get("resourceClaims")

        # The apiserver takes a policy into use a moment after it is there.
        claims = eventually(admitted, "the policy in use")
        assert claims == [{"name": "gemlet", "resourceClaimTemplateName": "quarter"}]
        eventually(lambda: lines(cluster, "a", "total") == ["16384"], "first CUDA call")
        cluster.create(pod("plain", "sleep", "1000"))
        assert "resourceClaims" not in cluster.get("pod", "plain")["spec"]
    finally:
        cluster.gemlet.upgrade()
        eventually(lambda: refused(cluster), "the webhook in use again")


def refused(cluster):
    """Whether the webhook is asked: about a pod that it refuses."""
    entry = json.dumps(pod("bad", "true", annotations=SHARE | {"gemlet.dev/compute": "0"}))
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", text=entry)
    except Refused:
        return True
    return False


def test_describe_says_what_a_pod_has_and_what_it_waits_for(cluster, face):
    cluster.create(pod("a", "probe", "1000", annotations=SHARE | {"gemlet.dev/compute": "90"}))
    eventually(lambda: cluster.phase("a") == "Running", "its start")
    (status,) = cluster.get("pod", "a")["status"]["resourceClaimStatuses"]
    said = cluster.kubectl("describe", "resourceclaim", status["resourceClaimName"])
    ((device, _),) = allocated(cluster, "a")
    for words in (device, "Compute:  90", "Memory:   16Gi", "share.gemlet.dev", "Reserved For"):
        assert words in said, said
    for name in ("b", "c"):
        cluster.create(pod(name, "probe", "1000", annotations=SHARE | {"gemlet.dev/compute": "90"}))
    waiting = eventually(
        lambda: next((name for name in "bc" if face.waits in cluster.events(name)), None), "one that waits"
    )
    assert face.waits in cluster.kubectl("describe", "pod", waiting)
