"""gemlet as a user of a cluster installs it: the chart, by Helm, with the image of `make image`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.kubernetes import VALUES
from tests.cluster.processes import LIMIT, RUN, eventually

helm = pytest.importorskip("helm_python", reason="`make cluster-test` installs Helm")

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.cluster import Cluster
    from tests.cluster.node import Node

CHART = Path(__file__).resolve().parents[2] / "packaging" / "chart"
RELEASE, NAMESPACE = "shares", "gemlet-system"  # as in README


class Release:
    """The release in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        os.environ |= {f"HELM_{kind}_HOME": str(RUN / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        self._helm = helm.Config(kubeconfig_path=cluster.admin, namespace=NAMESPACE)
        self._values: dict[str, Any] | None = None  # of the face in use; None before the installation

    def use(self, values: Mapping[str, Any], source: Path = CHART) -> None:
        """Installs the chart with VALUES and ``values``, or upgrades to them; they stay for later upgrades.

        source: where the chart is, if it is not this checkout's; upgrades are always to this one's.
        """
        installed, self._values = self._values is not None, VALUES | dict(values)
        if installed:
            self.upgrade()
            return
        with helm.Chart.load(source) as chart:
            self._helm.install(chart, RELEASE, self._values, namespace=NAMESPACE, create_namespace=True)
        self.wait()

    def uninstall(self) -> None:
        """Raises `helm.HelmError` if the chart refuses."""
        self._helm.uninstall(RELEASE, timeout=120)
        eventually(lambda: not self._cluster.get("pods", "-n", NAMESPACE)["items"], "the end of gemlet's pods")
        self._values = None

    def upgrade(self, *, wait: bool = True, **values: Any) -> None:
        """To the values in use with ``values``, and until all pods are replaced."""
        with helm.Chart.load(CHART) as chart:
            self._helm.upgrade(
                chart, RELEASE, (self._values or VALUES) | values, namespace=NAMESPACE, reset_values=True
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        kinds = self._cluster.kubectl("-n", NAMESPACE, "get", "daemonsets,deployments", "-o", "name").split()
        for kind in kinds:  # without the webhook where its place is taken by a policy
            self._cluster.kubectl("-n", NAMESPACE, "rollout", "status", kind, f"--timeout={LIMIT:.0f}s")
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

    def ask(self, node: Node, *command: str) -> str:
        """What a command of gemlet says of a node's daemon."""
        return self.execute(node, "daemon", "gemlet", "--socket", "/run/gemlet", *command)

    def status(self, node: Node) -> dict[str, Any]:
        """The document of `gemlet status -o json` on ``node``."""
        document: dict[str, Any] = json.loads(self.ask(node, "status", "-o", "json"))
        return document

    def lose(self, node: Node, device: int, *, lost: bool = True) -> None:
        """Lets a simulated GPU of ``node`` fall off its bus, or puts it back."""
        self._machine(node, f"assert library.gemletSimSetLost({device}, {int(lost)}) == 0")

    def busy(self, node: Node, devices: int = 2) -> float:
        """Seconds for which the multiprocessors of a node's simulated GPUs have worked: the machine's own account."""
        said = self._machine(
            node,
            "ns, switches = ctypes.c_ulonglong(), ctypes.c_ulonglong();"
            "ask = lambda n: library.gemletSimTotals(n, ctypes.byref(ns), ctypes.byref(switches));"
            f"[print(ask(n), ns.value) for n in range({devices})]",
        )
        return sum(int(line.split()[1]) for line in said.splitlines()) / 1e9

    def _machine(self, node: Node, code: str) -> str:
        """Asks a node's simulated machine behind its driver's back."""
        begin = (
            "import ctypes, os; from gemlet import paths; from gemlet.daemon import address;"
            "os.environ['GEMLET_SIM_DIR'] = str(address.explicit('/run/gemlet').machine);"
            "library = ctypes.CDLL(paths.sim_dir() + '/libcuda.so.1');"
        )
        return self.execute(node, "daemon", "python3.11", "-c", begin + code)

    def log(self, container: str, node: Node) -> str:
        """All that a container of gemlet's has written on ``node``, by all its pods since the start."""
        files = sorted((node.fixed / "var/log/pods").glob(f"{NAMESPACE}_*/{container}/*.log"))
        return "\n".join(path.read_text(errors="replace") for path in files)

    def _status(self, container: str, node: Node) -> dict[str, Any]:
        statuses = self.agent(node)["status"]["containerStatuses"]
        found: dict[str, Any] = next(status for status in statuses if status["name"] == container)
        return found
