"""Claims as the scheduler leaves them."""

from __future__ import annotations

import copy

import msgspec
import pytest

from gemlet.config.rules import check_name
from gemlet.kube.claims import NOTHING, check_pod, container_of, counted, read_claim
from gemlet.kube.request import BadRequest
from gemlet.kube.share import group_name
from gemlet.model import Priority
from tests.unit.kube import fakes

BY_NAME = {gpu.device: gpu for gpu in fakes.GPUS}


def result(device="gpu-0", memory="16Gi", compute="25", request="gpu", **more):
    made = {"request": request, "driver": "gemlet.dev", "pool": "n1", "device": device, "shareID": "s"}
    return made | {"consumedCapacity": {"memory": memory, "compute": compute}} | more


def config(requests=(), **parameters):
    parameters = {"apiVersion": "gemlet.dev/v1alpha1", "kind": "ShareConfig"} | parameters
    return {"requests": list(requests), "opaque": {"driver": "gemlet.dev", "parameters": parameters}}


def claim(*results, configs=(), pods=("a",)):
    return {
        "metadata": {"namespace": "default", "name": "c", "uid": "u1"},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(configs)}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name} for name in pods],
        },
    }


def read(seen, uid="u1"):
    return read_claim(seen, uid=uid, pool="n1", gpus=BY_NAME)


def test_what_was_consumed_is_the_share():
    share = read(claim(result()))
    assert (share.id, share.group, share.gpus) == ("claim-u1", "default/c", (fakes.FIRST,))
    assert share.granted == fakes.amounts(16, 25)
    assert (share.pod.name, share.requests) == ("a", {"gpu-0": ("gpu",)})


def test_a_share_is_counted_as_its_claim_is_allocated_now():
    """The kubelet may keep what it has prepared for a claim that is allocated anew."""
    first = claim(result(request="gpu/big"), configs=[config(computeLimit=80)])
    share = read(first)
    lowered = msgspec.structs.replace(share, amounts=fakes.amounts(8, 10))  # by an annotation
    assert counted(lowered, first, "n1") is lowered
    less = counted(share, claim(result(compute="10", request="gpu/small")), "n1")
    assert (less.granted, less.amounts) == (fakes.amounts(16, 10), fakes.amounts(16, 10))
    assert (less.id, less.gpus, less.requests) == (share.id, share.gpus, {"gpu-0": ("gpu/small",)})
    for elsewhere in (
        claim(result("gpu-1", request="gpu/big")),
        claim(result(pool="n2", request="gpu/big")),
        claim(result(request="gpu/big"), result("gpu-1", request="gpu/big")),
        claim(result(request="gpu/big"), configs=[config(priority="\ud800")]),
        claim(),
    ):
        nothing = counted(share, elsewhere, "n1")
        assert (nothing.granted, nothing.amounts, nothing.requests) == (NOTHING, NOTHING, share.requests)
        assert counted(nothing, elsewhere, "n1") is nothing, "once"


def test_names_of_any_length_are_those_of_groups():
    """A namespace of 63 characters and a claim of 253 are more than the daemon takes: the claim was never prepared."""
    names = set()
    for last in "ab":
        seen = claim(result())
        seen["metadata"] |= {"namespace": "n" * 63, "name": "c" * 252 + last}
        names.add(check_name(read(seen).group))
    names |= {group_name("n" * 63, "p" * 253, last) for last in ("c" * 63, "d")}
    assert len(names) == 4
    for name in names:
        assert check_name(name) == name


def test_other_drivers_devices_and_parameters_are_not_ours():
    other = result(driver="example.com", device="x")
    foreign = {"opaque": {"driver": "example.com", "parameters": {"anything": 1}}}
    assert read(claim(other, result(), configs=[foreign])).gpus == (fakes.FIRST,)


def test_the_claims_configuration_comes_after_the_classes():
    share = read(
        claim(result(), configs=[config(computeLimit=50), config(["gpu"], computeLimit=80, priority="latency")])
    )
    assert (share.granted.limit, share.granted.priority) == (80, Priority.LATENCY)
    assert read(claim(result(), configs=[config(["other"], computeLimit=50)])).granted.limit == 25


def test_several_gpus_of_the_same_amount_are_one_share():
    share = read(claim(result("gpu-0", request="a"), result("gpu-1", request="b")))
    assert share.gpus == (fakes.FIRST, fakes.SECOND)
    assert share.requests == {"gpu-0": ("a",), "gpu-1": ("b",)}


def reserved_for(resource, **more):
    seen = claim(result())
    seen["status"]["reservedFor"].append({"resource": resource, "name": "g", "uid": "g"} | more)
    return seen


def without(seen, *path):
    changed = copy.deepcopy(seen)
    place = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return changed


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (without(claim(result()), "status", "allocation"), "status.allocation: is missing"),
        (without(claim(result()), "status"), "status.allocation: is missing"),
        (claim(), "results: has no device"),
        (claim(without(result(), "consumedCapacity")), "consumedCapacity.memory.*DRAConsumable"),
        (claim(result(memory="81Gi")), "memory: 81Gi is more than a GPU has"),
        (claim(result(compute="0")), "compute: 0 is not from 1 to 100"),
        (claim(result("gpu-7")), "gpu-7 is not a device of this node"),
        (claim(result(pool="n2")), "n2/gpu-0 is not a device of this node"),
        (claim(result(), result(shareID="t")), "twice.*distinctAttribute: gemlet.dev/uuid"),
        (claim(result("gpu-0"), result("gpu-1", compute="30")), "different amounts.*same memory and compute"),
        (claim(result(adminAccess=True)), "adminAccess"),
        (reserved_for("podgroups", apiGroup="scheduling.k8s.io"), r"reservedFor\[1\]: is one of podgroups"),
        (reserved_for("pods", apiGroup="example.com"), r"reservedFor\[1\]"),
        (claim(result(), configs=[config(computeLimit=10)]), r"config\[0\].*computeLimit: 10 is not valid"),
        (claim(result(), configs=[config(colour="red")]), r"config\[0\].*colour"),
        (
            claim(result("gpu-0", request="a"), result("gpu-1", request="b"), configs=[config(["a"], computeLimit=80)]),
            "differs between requests",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(seen, text):
    with pytest.raises(BadRequest, match=text):
        read(seen)


def test_another_claim_of_the_same_name_is_not_this_one():
    with pytest.raises(BadRequest, match="is u1, not u0"):
        read(claim(result()), uid="u0")


def pod(*claims_of_containers):
    return {
        "spec": {
            "resourceClaims": [
                {"name": "x", "resourceClaimName": "c"},
                {"name": "y", "resourceClaimTemplateName": "t"},
            ],
            "containers": [
                {"name": f"c{number}", "resources": {"claims": [{"name": name} for name in names]}}
                for number, names in enumerate(claims_of_containers)
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "y", "resourceClaimName": "pod-y-1"}]},
    }


def test_a_container_is_in_one_share():
    ours = {"c", "pod-y-1"}
    check_pod(pod(["x"], ["y"]), ours)
    check_pod(pod(["x", "y"]), {"c"})
    with pytest.raises(BadRequest, match=r"containers\[c0\].*x and y"):
        check_pod(pod(["x", "y"]), ours)


def test_a_container_that_would_leave_its_share_is_refused():
    """Nobody asks admission about a claim that a pod brings itself."""
    seen = pod(["x"], [])
    seen["spec"]["containers"][1]["env"] = [{"name": "LD_PRELOAD", "value": "x.so"}]
    check_pod(seen, {"c"})
    seen["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "x.so"}]
    with pytest.raises(BadRequest, match=r"spec.containers\[0\].env\[LD_PRELOAD\].*remove it"):
        check_pod(seen, {"c"})
    seen["spec"]["initContainers"] = [seen["spec"]["containers"].pop(0)]
    with pytest.raises(BadRequest, match=r"spec.initContainers\[0\].env\[LD_PRELOAD\]"):
        check_pod(seen, {"c"})


def by_resource(**more):
    """A pod whose claim the scheduler has made, for a resource of a device class (Kubernetes 1.36)."""
    resource = "deviceclass.resource.kubernetes.io/share.gemlet.dev"
    mapping = {"containerName": "c0", "resourceName": resource, "requestName": "container-0-request-0"}
    return {
        "spec": {
            "resourceClaims": [{"name": "x", "resourceClaimName": "c"}],
            "containers": [{"name": "c0", "resources": {"limits": {resource: "1"}}} | more, {"name": "c1"}],
        },
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": [mapping]}},
    }


def test_a_container_whose_share_is_a_resource_may_not_leave_it_either():
    check_pod(by_resource(), {"made"})
    escaping = {"env": [{"name": "LD_PRELOAD", "value": "x.so"}]}
    check_pod(by_resource(**escaping), {"another"})
    with pytest.raises(BadRequest, match=r"spec.containers\[0\].env\[LD_PRELOAD\]"):
        check_pod(by_resource(**escaping), {"made"})
    with pytest.raises(BadRequest, match=r"share.gemlet.dev and x are both shares"):
        check_pod(by_resource(resources={"claims": [{"name": "x"}]}), {"made", "c"})


def test_a_container_whose_share_is_a_resource_is_its_user():
    assert container_of(by_resource(), "made") == "c0"
