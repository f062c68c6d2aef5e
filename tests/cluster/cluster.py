"""A Kubernetes cluster in one directory: its control plane, a node, and gemlet installed by its chart.

Every part is the real one; the GPUs are simulated. `run` has put us into namespaces of our own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster import image, kubernetes
from tests.cluster.authority import Authority
from tests.cluster.node import Node
from tests.cluster.processes import BIN, LIMIT, RUN, Process, eventually
from tests.cluster.release import Release

ADDRESS = "10.99.0.1"
API = f"https://{ADDRESS}"
NAMES = (ADDRESS, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "10.0.0.1")


class Cluster:
    """Started once for all tests."""

    def __init__(self) -> None:
        self.pki = Authority(RUN / "pki", API, NAMES)
        for name, common, organization in (
            ("apiserver", "kube-apiserver", None),
            ("admin", "admin", "system:masters"),
        ):
            self.pki.issue(name, common, organization)
        self.admin = self.pki.kubeconfig("admin")
        self.parts: dict[str, Process] = {}
        self.images = [RUN / "images.tar", Path(os.environ["GEMLET_IMAGE"])]
        self.node = Node(1, self.pki)

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        image.write(self.images[0], BIN / "busybox", image.compile_probe(RUN))
        self._control_plane()
        self.node.start(self.images)
        eventually(self.ready, "node ready")
        self.gemlet = Release(self)

    def stop(self) -> None:
        self.node.stop()
        for process in reversed(self.parts.values()):
            process.stop(kill=True)

    def _run(self, name: str, *command: object, **environment: str) -> Process:
        self.parts[name] = Process(name, *command, **environment).start()
        return self.parts[name]

    def _control_plane(self) -> None:
        pki, etcd = self.pki.directory, "http://127.0.0.1:2379"
        self._run(
            "etcd", BIN / "etcd", "--data-dir", RUN / "etcd", "--unsafe-no-fsync", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380",
            "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380",
        )  # fmt: skip
        self._run(
            "apiserver", BIN / "kube-apiserver", "--etcd-servers", etcd, "--bind-address", "0.0.0.0",
            "--advertise-address", ADDRESS, "--secure-port", "443", "--client-ca-file", pki / "ca.crt",
            "--tls-cert-file", pki / "apiserver.crt", "--tls-private-key-file", pki / "apiserver.key",
            "--service-account-issuer", "https://kubernetes.default", "--service-account-key-file", pki / "sa.key",
            "--service-account-signing-key-file", pki / "sa.key", "--service-cluster-ip-range", "10.0.0.0/24",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
            "--kubelet-client-certificate", pki / "admin.crt", "--kubelet-client-key", pki / "admin.key",
            "--cert-dir", RUN / "apiserver",
            "--kubelet-preferred-address-types", "InternalIP",  # nobody here knows the nodes by name
            "--enable-aggregator-routing",  # webhooks by their pods' addresses: there is no kube-proxy
        )  # fmt: skip
        eventually(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", "apiserver ready")
        (RUN / "scheduler.json").write_text(json.dumps(kubernetes.scheduler(self.admin)))
        self._run(
            "scheduler", BIN / "kube-scheduler", "--config", RUN / "scheduler.json",
            "--secure-port=10259", "--bind-address=127.0.0.1", "--cert-dir", RUN / "scheduler",
        )  # fmt: skip
        self._run(
            "controllers", BIN / "kube-controller-manager", "--kubeconfig", self.admin, "--leader-elect=false",
            *kubernetes.controllers(), "--secure-port=10257", "--bind-address=127.0.0.1",
            "--cert-dir", RUN / "controllers",
            "--service-account-private-key-file", pki / "sa.key", "--root-ca-file", pki / "ca.crt",
            "--use-service-account-credentials=true",
        )  # fmt: skip

    # --- what tests use ------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """Output of kubectl; "" if it fails and ``check`` is not set."""
        command = [str(BIN / "kubectl"), "--kubeconfig", str(self.admin), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=2 * LIMIT)
        if check and done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout if done.returncode == 0 else ""

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        for entry in objects:
            self.kubectl("apply", "-f", "-", text=json.dumps(entry))

    def create(self, *objects: dict[str, Any]) -> None:
        """Raises `Refused`."""
        self.kubectl("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def takes(self, *objects: dict[str, Any]) -> bool:
        """Creates them, if the apiserver and those that it asks are ready to; else False."""
        try:
            self.create(*objects)
        except Refused:
            return False
        return True

    def ready(self, node: str = "n1") -> bool:
        text = self.kubectl("get", "nodes", node, "-o", "json", check=False)
        conditions = json.loads(text)["status"].get("conditions", []) if text else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def allocatable(self, resource: str = "gemlet.dev/share", node: str = "n1") -> int:
        return int(self.get("node", node)["status"]["allocatable"].get(resource, "0"))

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"]["phase"])

    def phases(self) -> set[str]:
        """Of all pods."""
        return {item["status"]["phase"] for item in self.get("pods")["items"]}

    def log(self, pod: str) -> str:
        """What a pod's containers wrote: read on the node, whose name the apiserver cannot resolve."""
        # By uid: an earlier test's pod may have had the same name, and its log stays for a while.
        uid = self.get("pod", pod)["metadata"]["uid"]
        places = (RUN / "fixed", *RUN.glob("n*/fixed"))
        files = [path for place in places for path in (place / "var/log/pods").glob(f"default_{pod}_{uid}/*/*.log")]
        lines = [line for path in sorted(files) for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    def delete(self, *pods: str) -> None:
        # The kubelet of 1.20 collects what is left of a pod that goes before its container has come once a minute only.
        options = ("--grace-period=1", "--wait=true", "--ignore-not-found")
        if pods:
            self.kubectl("delete", "pod", *pods, *options)

    def events(self, pod: str) -> str:
        # By uid, as in `log`.
        uid = self.get("pod", pod)["metadata"]["uid"]
        items = self.get("events", "--field-selector", f"involvedObject.uid={uid}")["items"]
        return "\n".join(item["message"] for item in items)


class Refused(Exception):
    """The apiserver said no."""


def pod(name: str, *command: str, annotations: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    """A pod of the test's image. It shares the node's process ids: the simulated driver knows processes by them."""
    made = {"name": "c", "image": "local/app:1", "imagePullPolicy": "Never", "command": list(command)} | container
    labels = {"gpu": "shared"} if annotations else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "annotations": annotations or {}},
        "spec": {
            "hostPID": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "containers": [made],
        },
    }
