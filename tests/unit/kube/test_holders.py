"""Which pods stand in the way of an uninstallation."""

from __future__ import annotations

from gemlet.kube.api_server import ApiError
from gemlet.kube.holders import find
from tests.unit.kube import fakes


def pod(name, *, node="n1", phase="Running", **limits):
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def claim(user, driver="gemlet.dev"):
    return {
        "metadata": {"namespace": "default", "name": f"{user}-claim"},
        "status": {
            "allocation": {"devices": {"results": [{"driver": driver}]}},
            "reservedFor": [{"resource": "pods", "name": user}],
        },
    }


SLOT = {"gemlet.dev/share": "1"}


def test_pods_with_a_slot_or_a_claim_hold_a_share_until_they_end(run):
    pods = [
        pod("slot", **SLOT),
        pod("units", **{"gemlet.dev/compute-units": "1", "gemlet.dev/memory-units": "1"}),
        pod("claims"),
        pod("other", cpu="1"),
        pod("others-claim"),
        pod("done", phase="Succeeded", **SLOT),
        pod("waits", node=None, **SLOT),
    ]
    claims = [
        claim("claims"),
        claim("others-claim", driver="gpu.nvidia.com"),
        {"metadata": {"namespace": "n", "name": "c"}},
    ]
    api = fakes.FakeApi()
    api.objects |= {"/api/v1/pods": {"items": pods}, "/apis/resource.k8s.io/v1/resourceclaims": {"items": claims}}
    assert run(find(api)) == ["default/claims", "default/slot", "default/units"]


def test_a_cluster_without_claims_is_asked_for_its_pods_only(run):
    api = fakes.FakeApi()
    api.objects["/api/v1/pods"] = {"items": [pod("slot", **SLOT)]}
    assert run(find(api)) == ["default/slot"]


def test_an_apiserver_that_fails_is_not_a_cluster_without_pods(run):
    class Failing(fakes.FakeApi):
        async def get(self, path, **query):
            raise ApiError("no", status=500)

    try:
        run(find(Failing()))
    except ApiError:
        return
    raise AssertionError
