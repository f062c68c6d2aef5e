"""A Kubernetes node in one directory: etcd, apiserver, scheduler, controller-manager, containerd, kubelet, and gemlet.

Every part is the real one; the GPU is the simulated machine. `run` has put us into namespaces of our own.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import image
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(os.environ.get("GEMLET_CLUSTER_CACHE", "/nonexistent")) / "bin"
RUN = Path(os.environ.get("GEMLET_CLUSTER_RUN", "/nonexistent"))
NODE, ADDRESS = "n1", "10.99.0.1"
API = f"https://{ADDRESS}:6443"
WEBHOOK_PORT = 8443
NAMES = (ADDRESS, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "10.0.0.1")


class Failed(AssertionError):
    """Something did not happen in time."""


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of ``condition``."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return value


class Process:
    """One part of the cluster, logging to a file of its own."""

    def __init__(self, name: str, *command: object, **environment: str) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMLET_")} | environment
        self.log = RUN / "log" / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        self.log.parent.mkdir(exist_ok=True)
        log: IO[bytes]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._environment)
        return self

    def stop(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        self._process.kill() if kill else self._process.terminate()
        self._process.wait(30)
        self._process = None

    def resident(self) -> int:
        """Bytes of memory."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class Authority:
    """The cluster's certificates."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.ca = trustme.CA(organization_name="gemlet-test")
        self.ca.cert_pem.write_to_path(directory / "ca.crt")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
        (directory / "sa.key").write_bytes(
            key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, none)
        )

    def issue(self, name: str, common: str, organization: str | None = None) -> None:
        """NAME.crt and NAME.key."""
        pair = self.ca.issue_cert(*NAMES, common_name=common, organization_name=organization)
        pair.private_key_pem.write_to_path(self.directory / f"{name}.key")
        (self.directory / f"{name}.crt").write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))

    def kubeconfig(self, name: str) -> Path:
        """A kubeconfig as JSON, which is YAML too."""

        def data(file: str) -> str:
            return base64.b64encode((self.directory / file).read_bytes()).decode()

        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": API, "certificate-authority-data": data("ca.crt")}}],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate-data": data(f"{name}.crt"),
                        "client-key-data": data(f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path


class Cluster:
    """Started once for all tests."""

    def __init__(self) -> None:
        self.pki = Authority(RUN / "pki")
        for name, common, organization in (
            ("apiserver", "kube-apiserver", None),
            ("admin", "admin", "system:masters"),
            ("node", f"system:node:{NODE}", "system:nodes"),
        ):
            self.pki.issue(name, common, organization)
        self.admin = self.pki.kubeconfig("admin")
        self.parts: dict[str, Process] = {}
        self.times: dict[str, float] = {}
        self._begun = time.monotonic()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._control_plane()
        self._containers()
        self._kubelet()
        self._gemlet()

    def stop(self) -> None:
        for process in reversed(self.parts.values()):
            process.stop(kill=True)

    def mark(self, what: str) -> None:
        self.times[what] = time.monotonic() - self._begun

    def _run(self, name: str, *command: object, **environment: str) -> Process:
        self.parts[name] = Process(name, *command, **environment).start()
        return self.parts[name]

    def _control_plane(self) -> None:
        pki, etcd = self.pki.directory, "http://127.0.0.1:2379"
        self._run(
            "etcd", BIN / "etcd", "--data-dir", RUN / "etcd", "--unsafe-no-fsync", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380",
            "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380",
            ETCD_UNSUPPORTED_ARCH="",
        )  # fmt: skip
        self._run(
            "apiserver", BIN / "kube-apiserver", "--etcd-servers", etcd, "--bind-address", ADDRESS,
            "--advertise-address", ADDRESS, "--secure-port", "6443", "--client-ca-file", pki / "ca.crt",
            "--tls-cert-file", pki / "apiserver.crt", "--tls-private-key-file", pki / "apiserver.key",
            "--service-account-issuer", "https://kubernetes.default", "--service-account-key-file", pki / "sa.key",
            "--service-account-signing-key-file", pki / "sa.key", "--service-cluster-ip-range", "10.0.0.0/24",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
            "--kubelet-client-certificate", pki / "admin.crt", "--kubelet-client-key", pki / "admin.key",
            "--cert-dir", RUN / "apiserver",
        )  # fmt: skip
        eventually(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", "apiserver ready")
        self.mark("apiserver ready")
        self._run(
            "scheduler", BIN / "kube-scheduler", "--kubeconfig", self.admin, "--leader-elect=false", "--port=0",
            "--secure-port=10259", "--bind-address=127.0.0.1", "--cert-dir", RUN / "scheduler",
        )  # fmt: skip
        self._run(
            "controllers", BIN / "kube-controller-manager", "--kubeconfig", self.admin, "--leader-elect=false",
            "--port=0", "--secure-port=10257", "--bind-address=127.0.0.1", "--cert-dir", RUN / "controllers",
            "--service-account-private-key-file", pki / "sa.key", "--root-ca-file", pki / "ca.crt",
            "--use-service-account-credentials=true",
        )  # fmt: skip

    def _containers(self) -> None:
        network = RUN / "cni.d"
        network.mkdir()
        (network / "10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "pods",
            "plugins": [{
                "type": "bridge", "bridge": "pods0", "isGateway": True,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/24"}]], "dataDir": str(RUN / "cni")},
            }],
        }))  # fmt: skip
        (RUN / "containerd.toml").write_text(f"""
            version = 2
            root = "{RUN}/containerd/root"
            state = "{RUN}/containerd/state"
            disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
            [grpc]
            address = "{RUN}/containerd.sock"
            [plugins."io.containerd.grpc.v1.cri"]
            sandbox_image = "local/pause:1"
            restrict_oom_score_adj = true
            [plugins."io.containerd.grpc.v1.cri".cni]
            bin_dir = "{BIN.parent}/cni"
            conf_dir = "{network}"
            """)
        self._run("containerd", BIN / "containerd", "--config", RUN / "containerd.toml")
        socket = RUN / "containerd.sock"
        ctr = [str(BIN / "ctr"), "-a", str(socket), "-n", "k8s.io"]
        eventually(
            lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0, "containerd"
        )
        archive = RUN / "images.tar"
        image.write(archive, BIN / "busybox", image.compile_probe(RUN))
        subprocess.run([*ctr, "images", "import", str(archive)], check=True, capture_output=True)

    def _kubelet(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
            "failSwapOn": False, "port": 10250, "readOnlyPort": 0, "healthzPort": 10248, "address": ADDRESS,
            "authentication": {"x509": {"clientCAFile": str(self.pki.directory / "ca.crt")}},
            "authorization": {"mode": "Webhook"}, "imageGCHighThresholdPercent": 100, "cgroupsPerQOS": False,
            "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
            "enforceNodeAllocatable": [], "syncFrequency": "1s", "nodeStatusUpdateFrequency": "1s",
        }  # fmt: skip
        (RUN / "kubelet.json").write_text(json.dumps(config))
        self._run(
            "kubelet", BIN / "kubelet", "--config", RUN / "kubelet.json", "--kubeconfig", self.pki.kubeconfig("node"),
            "--container-runtime=remote", "--container-runtime-endpoint", f"unix://{RUN}/containerd.sock",
            "--hostname-override", NODE, "--node-ip", ADDRESS, "--pod-infra-container-image=local/pause:1",
            "--cert-dir", RUN / "kubelet-pki", "--runtime-cgroups=/", "--kubelet-cgroups=/",
        )  # fmt: skip
        eventually(self.ready, "node ready")
        self.mark("node ready")

    def _gemlet(self) -> None:
        runtime = RUN / "g"
        runtime.mkdir()
        gemlet = [sys.executable, "-m", "gemlet.cli.main"]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {"PYTHONPATH": path, "GEMLET_SIM_DEVICES": "2"}
        self._run("daemon", *gemlet, "daemon", "--simulate", "--runtime-dir", runtime, **environment)
        self._run(
            "agent", *gemlet, "--socket", runtime, "kube", "agent", "--node", NODE, "--simulate", "--slots", "4",
            "--kubeconfig", self.admin, "--directory", RUN / "state", "--cdi-directory", RUN / "cdi", "--port", "9533",
            **environment, MALLOC_ARENA_MAX="2",
        )  # fmt: skip
        self.certificate()
        self._run(
            "webhook", *gemlet, "kube", "webhook", "--certificates", RUN / "tls", "--slots", "4", "--port",
            WEBHOOK_PORT, "--address", ADDRESS, "--kubeconfig", self.admin, "--gpu-memory", "143771MiB", **environment,
        )  # fmt: skip
        self.apply(self.webhook_configuration())
        eventually(lambda: self.allocatable() == 8, "slots allocatable")
        self.mark("slots allocatable")

    # --- what tests use ------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """Output of kubectl; "" if it fails and ``check`` is not set."""
        command = [str(BIN / "kubectl"), "--kubeconfig", str(self.admin), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout if done.returncode == 0 else ""

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        for entry in objects:
            self.kubectl("apply", "-f", "-", text=json.dumps(entry))

    def create(self, entry: dict[str, Any]) -> None:
        """Raises `Refused`."""
        self.kubectl("create", "-f", "-", text=json.dumps(entry))

    def ready(self) -> bool:
        text = self.kubectl("get", "nodes", NODE, "-o", "json", check=False)
        conditions = json.loads(text)["status"].get("conditions", []) if text else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def allocatable(self, resource: str = "gemlet.dev/share") -> int:
        return int(self.get("node", NODE)["status"]["allocatable"].get(resource, "0"))

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"]["phase"])

    def log(self, pod: str) -> str:
        """What a pod's containers wrote: read on the node, whose name the apiserver cannot resolve."""
        # By uid: an earlier test's pod may have had the same name, and its log stays for a while.
        uid = self.get("pod", pod)["metadata"]["uid"]
        files = sorted(Path(f"/var/log/pods/default_{pod}_{uid}").glob("*/*.log"))
        lines = [line for path in files for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    def delete(self, *pods: str) -> None:
        if pods:
            self.kubectl("delete", "pod", *pods, "--grace-period=1", "--wait=true", "--ignore-not-found")

    def events(self, pod: str) -> str:
        items = self.get("events", "--field-selector", f"involvedObject.name={pod}")["items"]
        return "\n".join(item["message"] for item in items)

    def certificate(self) -> None:
        """A new certificate for the webhook."""
        self.pki.issue("webhook", "gemlet-webhook")
        directory = RUN / "tls"
        directory.mkdir(exist_ok=True)
        for kind in ("crt", "key"):
            fresh = directory / f"new.{kind}"
            fresh.write_bytes((self.pki.directory / f"webhook.{kind}").read_bytes())
            fresh.replace(directory / f"tls.{kind}")

    def webhook_configuration(self) -> dict[str, Any]:
        """Kubernetes 1.20 knows no matchConditions, so here pods are chosen by a label."""
        authority = base64.b64encode((self.pki.directory / "ca.crt").read_bytes()).decode()
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "gemlet"},
            "webhooks": [
                {
                    "name": "pods.gemlet.dev",
                    "clientConfig": {"url": f"https://{ADDRESS}:{WEBHOOK_PORT}/mutate-v1-pod", "caBundle": authority},
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                    "objectSelector": {"matchLabels": {"gpu": "shared"}},
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "reinvocationPolicy": "IfNeeded",
                    "timeoutSeconds": 5,
                }
            ],
        }


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
