"""Kubernetes' own quota over shares: by number, and a bound on the amount of each."""

from __future__ import annotations

import pytest

from tests.cluster.claims import request
from tests.cluster.cluster import Refused, pod
from tests.cluster.face import only_dra
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE

RESOURCES = {"slots": "requests.gemlet.dev/share", "dra": "share.gemlet.dev.deviceclass.resource.k8s.io/devices"}


def test_a_quota_counts_the_shares_of_a_namespace(cluster, face):
    resource = RESOURCES[face.name]
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two", "namespace": "default"}}
    cluster.apply(quota | {"spec": {"hard": {resource: "2"}}})
    try:
        eventually(lambda: cluster.get("resourcequota", "two").get("status", {}).get("used"), "the quota in use")
        for name in ("a", "b"):
            cluster.create(pod(name, "sleep", "1000", annotations=SHARE))
            eventually(lambda name=name: cluster.phase(name) == "Running", f"start of {name}")
        assert cluster.get("resourcequota", "two")["status"]["used"] == {resource: "2"}
        third = pod("c", "sleep", "1000", annotations=SHARE)
        if face.name == "slots":
            with pytest.raises(Refused, match="exceeded quota: two"):
                cluster.create(third)
        else:  # the claim is made after the pod
            cluster.create(third)
            eventually(lambda: "exceeded quota: two" in cluster.events("c"), "an event that says why")
            assert cluster.phase("c") == "Pending"
    finally:
        cluster.kubectl("delete", "resourcequota", "two")


# As in docs/kubernetes.md.
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "shares-at-most-half"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["resourceclaims"],
                }
            ]
        },
        "validations": [
            {
                "expression": "object.spec.devices.requests.all(r, has(r.exactly) && has(r.exactly.capacity)"
                " && quantity(string(r.exactly.capacity.requests['compute'])).compareTo(quantity('50')) <= 0)",
                "message": "a share is at most 50 % of a GPU here",
            }
        ],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "shares-at-most-half"},
    "spec": {"policyName": "shares-at-most-half", "validationActions": ["Deny"]},
}


@only_dra
def test_a_policy_bounds_the_amount_of_each_share(cluster, face):
    """With the number that a quota allows, this bounds the namespace's time: Kubernetes has no quota of capacity."""

    def claim(compute):
        spec = {"devices": {"requests": [request(compute=str(compute))]}}
        meta = {"name": f"c{compute}", "namespace": "default"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}

    def refused():
        try:
            cluster.create(claim(60))
        except Refused as error:
            return "at most 50 %" in str(error)
        cluster.kubectl("delete", "resourceclaim", "c60")
        return False

    cluster.apply(POLICY, BINDING)
    try:
        eventually(refused, "the policy in use")
        cluster.create(claim(50))
        cluster.create(pod("a", "sleep", "1000", annotations=SHARE | {"gemlet.dev/compute": "60"}))
        eventually(lambda: "at most 50 %" in cluster.events("a"), "the event that says why")
    finally:
        cluster.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "shares-at-most-half")
        cluster.kubectl("delete", "resourceclaims", "--all", "--wait=false")
