"""Kueue as its users install it: its chart, by Helm, with the manager that `build-kueue` built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster.processes import BIN, LIMIT, RUN, eventually
from tests.cluster.release import helm
from tests.oci import oci

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
PLACE = BIN.parent / "kueue"
RELEASE, NAMESPACE, IMAGE = "kueue", "kueue-system", "local/kueue"
CLAIMED = "gpu-shares"  # what claims of the class share.gemlet.dev are counted as
CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "integrations": {"frameworks": ["batch/job", "pod"]},
    "resources": {"deviceClassMappings": [{"name": CLAIMED, "deviceClassNames": ["share.gemlet.dev"]}]},
}
VALUES = {
    "managerConfig": {"controllerManagerConfigYaml": json.dumps(CONFIGURATION)},
    "controllerManager": {
        "featureGates": [
            {"name": "DynamicResourceAllocation", "enabled": True},
            # An API of its own, which this apiserver is not set up to pass on.
            {"name": "VisibilityOnDemand", "enabled": False},
        ],
        "manager": {
            "image": {"repository": IMAGE, "tag": "1", "pullPolicy": "Never"},
            "podSecurityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        },
    },
}
VISIBILITY = ("v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io")


class Kueue:
    """The release in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._helm = helm.Config(kubeconfig_path=cluster.admin, namespace=NAMESPACE)

    def install(self) -> None:
        layer = oci.Layer()
        layer.file("manager", (PLACE / "manager").read_bytes(), mode=0o755)
        archive = RUN / "kueue.tar"
        oci.write(archive, oci.Image(name=f"docker.io/{IMAGE}:1", layers=[layer.bytes()], command=["/manager"]))
        self._cluster.node.load(archive)
        with helm.Chart.load(PLACE / "chart") as chart:
            self._helm.install(chart, RELEASE, VALUES, namespace=NAMESPACE, create_namespace=True)
        # Nobody serves it here, and namespaces do not end while an API is missing.
        self._cluster.kubectl("delete", "apiservices", *VISIBILITY)
        self._cluster.kubectl(
            "-n", NAMESPACE, "rollout", "status", "deployment/kueue-controller-manager", f"--timeout={LIMIT:.0f}s"
        )

    def queue(self, **quota: int) -> None:
        """One named `team` in the tests' namespace: so much of each resource at a time."""
        objects = queue(quota)
        # Its webhooks answer a moment after its pod is ready.
        eventually(lambda: self._cluster.takes(*objects), "the queue")
        eventually(lambda: _active(self._cluster.get("clusterqueue", "team")), "the queue in use")

    def workload(self, owner: str) -> dict[str, Any]:
        """What Kueue made of a pod or a job, {} as long as it has not."""
        items: list[dict[str, Any]] = self._cluster.get("workloads.kueue.x-k8s.io")["items"]
        return next((item for item in items if item["metadata"]["ownerReferences"][0]["name"] == owner), {})

    def drop(self) -> None:
        """The queue."""
        self._cluster.kubectl("delete", "localqueue,clusterqueue", "team", "--ignore-not-found")
        self._cluster.kubectl("delete", "resourceflavor", "gpus", "--ignore-not-found")

    def uninstall(self) -> None:
        self._helm.uninstall(RELEASE, timeout=120)
        self._cluster.kubectl("delete", "namespace", NAMESPACE)


def queue(quota: dict[str, int]) -> list[dict[str, Any]]:
    """As docs/kubernetes.md has it, but for the quota."""
    flavor = {"name": "gpus", "resources": [{"name": name, "nominalQuota": most} for name, most in quota.items()]}
    objects = documented()
    objects[1]["spec"]["resourceGroups"] = [{"coveredResources": list(quota), "flavors": [flavor]}]
    return objects


def documented() -> list[dict[str, Any]]:
    """The document's flavor, queue of the cluster, and queue of the namespace."""
    shown = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    (text,) = (each for each in shown if "kind: ClusterQueue" in each)
    return list(yaml.safe_load_all(text))


def _active(queue: dict[str, Any]) -> bool:
    conditions = (queue.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)
