"""gemlet as a user of a cluster installs it: the chart, by Helm, with the image of `make image`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.processes import RUN, eventually

helm = pytest.importorskip("helm_python", reason="`make cluster-test` installs Helm")

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster
    from tests.cluster.node import Node

CHART = Path(__file__).resolve().parents[2] / "packaging" / "chart"
RELEASE, NAMESPACE = "shares", "gemlet-system"  # as in README
# What differs from what `helm install` does without any value: there is no GPU here, and Kubernetes 1.20 knows no
# matchConditions, so pods are chosen by a label.
VALUES: dict[str, Any] = {
    "gpuAccess": "simulated",
    "gpuMemory": "143771MiB",
    "admission": {"podSelector": {"gpu": "shared"}},
}


class Release:
    """The release in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        os.environ |= {f"HELM_{kind}_HOME": str(RUN / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        self._helm = helm.Config(kubeconfig_path=cluster.admin, namespace=NAMESPACE)

    def install(self) -> None:
        with helm.Chart.load(CHART) as chart:
            self._helm.install(chart, RELEASE, VALUES, namespace=NAMESPACE, create_namespace=True)
        self.wait()

    def upgrade(self, *, wait: bool = True, **values: Any) -> None:
        """To VALUES with ``values``, and until all pods are replaced."""
        with helm.Chart.load(CHART) as chart:
            self._helm.upgrade(chart, RELEASE, VALUES | values, namespace=NAMESPACE, reset_values=True)
        if wait:
            self.wait()

    def wait(self) -> None:
        for kind in ("daemonset/gemlet-agent", "deployment/gemlet-webhook"):
            self._cluster.kubectl("-n", NAMESPACE, "rollout", "status", kind, "--timeout=120s", seconds=130)
        # A rollout is over when the last old pod is told to end; until it has ended it may answer as the previous
        # release.
        eventually(lambda: not self._going(), "the old pods' end")

    def _going(self) -> list[dict[str, Any]]:
        items = self._cluster.get("pods", "-n", NAMESPACE)["items"]
        return [item for item in items if "deletionTimestamp" in item["metadata"]]

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The pods of `agent` or `webhook`, without those that are ending."""
        label = f"app.kubernetes.io/component={component}"
        items: list[dict[str, Any]] = self._cluster.get("pods", "-n", NAMESPACE, "-l", label)["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def agent(self, node: Node) -> dict[str, Any]:
        """The agent's pod on ``node``."""
        return next(pod for pod in self.pods("agent") if pod["spec"].get("nodeName") == node.name)

    def pid(self, container: str, node: Node) -> int:
        """The process of `agent` or `daemon`."""
        return node.container_pid(self._status(container, node)["containerID"])

    def kill(self, container: str, node: Node) -> None:
        """Kills `agent` or `daemon`, and waits until the kubelet has started it again."""
        before = self._status(container, node)["restartCount"]
        os.kill(self.pid(container, node), signal.SIGKILL)
        eventually(lambda: self._status(container, node)["restartCount"] > before, f"{container} again")
        eventually(lambda: self._status(container, node)["ready"], f"{container} ready")

    def execute(self, node: Node, container: str, *command: str) -> str:
        """What a command in the agent's pod says, as by `kubectl exec`."""
        name = self.agent(node)["metadata"]["name"]
        return self._cluster.kubectl("exec", "-n", NAMESPACE, name, "-c", container, "--", *command)

    def log(self, container: str, node: Node) -> str:
        """All that a container of gemlet's has written on ``node``, by all its pods since the start."""
        files = sorted((node.fixed / "var/log/pods").glob(f"{NAMESPACE}_*/{container}/*.log"))
        return "\n".join(path.read_text(errors="replace") for path in files)

    def _status(self, container: str, node: Node) -> dict[str, Any]:
        statuses = self.agent(node)["status"]["containerStatuses"]
        found: dict[str, Any] = next(status for status in statuses if status["name"] == container)
        return found
