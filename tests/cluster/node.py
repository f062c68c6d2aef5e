"""A node of the tests' cluster: containerd and the kubelet, in this namespace or in one of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster import kubernetes
from tests.cluster.processes import BIN, RUN, Process, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cluster.authority import Authority

GATEWAY = "10.99.0.1"


class Node:
    """``number`` 1 is this machine's namespaces; each further one has its own network, kubelet and images.

    fixed: where the paths that a kubelet and gemlet have on a node are really, as seen from here.
    """

    def __init__(self, number: int, pki: Authority) -> None:
        self.name, self.address = f"n{number}", f"10.99.0.{number}"
        self.run = RUN if number == 1 else Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=RUN))
        self.fixed = self.run / "fixed"
        self.parts: dict[str, Process] = {}
        self._number = number
        self._pki = pki
        self._enter: list[object] = []

    def start(self, images: Sequence[Path]) -> None:
        if self._number > 1:
            self._separate()
        self._containers(images)
        self._kubelet()

    def stop(self) -> None:
        self._halt()
        for part in reversed(self.parts.values()):
            part.stop(kill=True)

    def _halt(self) -> None:
        """Ends the kubelet, containerd and all containers; these would keep the node's address."""
        tasks: list[int] = []
        if "kubelet" in self.parts:
            self.parts["kubelet"].stop(kill=True)
            tasks = [int(line.split()[1]) for line in self._tasks() if line.split()[2] == "RUNNING"]
        if "containerd" in self.parts:
            self.parts["containerd"].stop(kill=True)
        for pid in (*_shims(self.run), *tasks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(_runs(pid) for pid in tasks), "the end of all containers")

    def reboot(self) -> None:
        """Ends everything at once and starts again, with an empty /run and without anything that the kubelet kept.

        Only of the first node: its processes and mounts are in this namespace.
        """
        self._halt()
        state = self.run / "containerd/state"
        lost = [*(self.fixed / path for path in ("var/lib/kubelet", "run/netns", "run/cdi", "run/gemlet")), state]
        unmount([state, *(Path("/", path.relative_to(self.fixed)) for path in lost[:-1]), *lost[:-1]])
        for directory in lost:
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self.parts["containerd"].start()
        eventually(self._answers, "containerd")
        self.parts["kubelet"].start()

    def container_pid(self, container: str) -> int:
        """The first process of a container, by the id that a pod's status has."""
        rows = [line.split() for line in self._tasks()]
        return next(int(row[1]) for row in rows if row[0] == container.rpartition("/")[2])

    def _tasks(self) -> list[str]:
        """A line for each container: id, process, state."""
        said = subprocess.run([*self._ctr(), "task", "ls"], capture_output=True, text=True, check=True).stdout
        return said.splitlines()[1:]

    def _answers(self) -> bool:
        return subprocess.run([*self._ctr(), "version"], capture_output=True, check=False).returncode == 0

    def allocations(self, resource: str, since: dict[float, int] | None = None) -> dict[float, int]:
        """How many calls of Allocate for ``resource`` took the kubelet at most this many seconds; at infinity, all
        calls.

        since: an earlier result, whose calls are left out.
        """
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the kubelet signs its own
        context.load_cert_chain(self._pki.directory / "admin.crt", self._pki.directory / "admin.key")
        url = f"https://{self.address}:10250/metrics"
        text = urllib.request.urlopen(url, context=context, timeout=30).read().decode()
        found = re.findall(
            rf'kubelet_device_plugin_alloc_duration_seconds_bucket{{resource_name="{resource}",le="([^"]+)"}} (\d+)',
            text,
        )
        return {float(bound): int(count) - (since or {}).get(float(bound), 0) for bound, count in found}

    def _run(self, name: str, *command: object) -> None:
        self.parts[name] = Process(f"{self.name}-{name}", *command, prefix=self._enter).start()

    def _ctr(self) -> list[str]:
        return [str(BIN / "ctr"), "-a", str(self.run / "containerd.sock"), "-n", "k8s.io"]

    def _separate(self) -> None:
        """Namespaces for the node, and a cable to the bridge of the first one."""
        self.fixed.mkdir(parents=True)
        here = Path(__file__).parent
        unshare = ["unshare", "--mount", "--net", "--uts", "--propagation", "private", "--"]
        self._run("namespaces", *unshare, here / "enter-node", self.fixed, BIN / "busybox")
        pid = self.parts["namespaces"].pid
        eventually((self.fixed / "ready").exists, f"namespaces of {self.name}")
        network = {
            "cniVersion": "0.4.0", "name": "nodes", "type": "bridge", "bridge": "node0",
            "ipam": {
                "type": "static", "addresses": [{"address": f"{self.address}/24", "gateway": GATEWAY}],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }  # fmt: skip
        plugins = BIN.parent / "cni"
        cni = {
            "CNI_COMMAND": "ADD", "CNI_CONTAINERID": self.name, "CNI_IFNAME": "eth0", "CNI_PATH": str(plugins),
            "CNI_NETNS": f"/proc/{pid}/ns/net",
        }  # fmt: skip
        subprocess.run(
            [plugins / "bridge"], input=json.dumps(network), text=True, check=True, capture_output=True,
            env=os.environ | cni,
        )  # fmt: skip
        route = ["ip", "route", "replace", self._pods(), "via", self.address]
        subprocess.run([BIN / "busybox", *route], check=True)
        self._enter = ["nsenter", "--target", pid, "--mount", "--net", "--uts", "--"]

    def _pods(self) -> str:
        return f"10.98.{self._number}.0/24"

    def _containers(self, images: Sequence[Path]) -> None:
        network = self.run / "cni.d"
        network.mkdir()
        (network / "10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "pods",
            "plugins": [{
                "type": "bridge", "bridge": "pods0", "isGateway": True,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": self._pods()}]], "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": str(self.run / "cni"),
                },
            }],
        }))  # fmt: skip
        settings = kubernetes.containerd(self.run, network=network, plugins=BIN.parent / "cni")
        (self.run / "containerd.toml").write_text(settings)
        self._run("containerd", BIN / "containerd", "--config", self.run / "containerd.toml")
        eventually(self._answers, "containerd")
        for archive in images:
            self.load(archive)

    def load(self, archive: Path) -> None:
        """An image into containerd, as README has it."""
        command = [*map(str, self._enter), *self._ctr(), "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True)

    def _kubelet(self) -> None:
        self._pki.issue(self.name, f"system:node:{self.name}", "system:nodes")
        cgroup = f"/{RUN.name}/{self.name}"
        all_cgroups = Path("/sys/fs/cgroup")
        version_2 = (all_cgroups / "cgroup.controllers").exists()
        for hierarchy in [all_cgroups] if version_2 else all_cgroups.iterdir():
            (hierarchy / cgroup[1:]).mkdir(parents=True, exist_ok=True)
        authority = self._pki.directory / "ca.crt"
        config = kubernetes.kubelet(self.run, address=self.address, authority=authority, cgroup=cgroup)
        (self.run / "kubelet.json").write_text(json.dumps(config))
        self._run(
            "kubelet", BIN / "kubelet", "--config", self.run / "kubelet.json",
            "--kubeconfig", self._pki.kubeconfig(self.name),
            "--hostname-override", self.name, "--node-ip", self.address,
            "--cert-dir", self.run / "kubelet-pki", *kubernetes.kubelet_flags(self.run),
        )  # fmt: skip


def unmount(trees: Sequence[Path]) -> None:
    """Whatever is mounted below one of ``trees``; not what is mounted at them."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted(mounted, reverse=True):
        if any(place.startswith(f"{tree}/") for tree in trees):
            # With one its peers go, which were in the list.
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _shims(run: Path) -> list[int]:
    """The processes that containerd has beside its containers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and str(run / "containerd.sock") in words:
                found.append(int(path.parent.name))
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
