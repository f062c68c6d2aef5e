"""Kubernetes' own quota over shares: by number."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Refused, pod
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
