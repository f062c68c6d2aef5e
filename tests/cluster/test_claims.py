"""Claims: the DRA driver with a real daemon, and real containers that get their share through CDI.

The kubelet is played, because Kubernetes 1.20 has no DRA; podman and runc read the driver's CDI files. The GPU
is simulated.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean

import grpc
import pytest

from gemlet import paths
from gemlet.daemon.address import Endpoint
from gemlet.daemon.inventory import NvmlInventory
from gemlet.kube import cdi, host, inventory, services
from gemlet.kube.api_server import ApiError
from gemlet.kube.book import ShareBook
from gemlet.kube.daemon_link import DaemonLink
from gemlet.kube.device_plugin import Gpus
from gemlet.kube.dra import DraDriver, claim_path
from gemlet.kube.edits import Host
from gemlet.kube.plugin_socket import keep_served
from gemlet.kube.protocol import dra_pb2 as messages
from tests.cluster import image
from tests.cluster.processes import BIN, RUN, Process, eventually

CDI = Path("/var/run/cdi")


class Objects:
    """What the apiserver has."""

    def __init__(self):
        self.claims = {}

    def allocate(self, uid, *, memory, compute, device="gpu-0"):
        result = {"request": "gpu", "driver": "gemlet.dev", "pool": "n1", "device": device, "shareID": uid}
        result["consumedCapacity"] = {"memory": memory, "compute": compute}
        self.claims[claim_path("default", uid)] = {
            "metadata": {"namespace": "default", "name": uid, "uid": uid},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }

    async def get(self, path, **query):
        if path not in self.claims:
            raise ApiError(f"GET {path}: 404", status=404)
        return self.claims[path]


class Node:
    """A daemon, a book and a driver, and what the kubelet would do with them."""

    def __init__(self, where):
        self.where = where
        self.endpoint = Endpoint(where / "g", "simulated")
        self.endpoint.directory.mkdir(parents=True)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "gemlet.cli.main", "daemon", "--simulate", "--runtime-dir", where / "g"]
        self.daemon = Process("claims-daemon", *command, PYTHONPATH=path, GEMLET_SIM_DEVICES="2").start()
        eventually(self.endpoint.api.exists, "daemon")
        self.objects = Objects()
        self.rootfs = image.unpack(where / "rootfs", BIN / "busybox", image.compile_probe(where))
        os.environ |= {"GEMLET_SIM_DIR": str(self.endpoint.machine), "GEMLET_SIM_DEVICES": "2"}
        NvmlInventory(simulated=True).devices()
        self.found = inventory.read()
        self.book = self.restart()

    def restart(self):
        """As a new agent: everything from the checkpoint."""
        shares = host.prepare(self.where / "state")
        profiles = Path(paths.__file__).with_name("profiles")
        copies = host.install_simulated(Path(paths.sim_dir()), profiles, self.where / "state")
        simulated = (*map(str, copies), str(self.endpoint.machine))
        made = Host(
            hook=str(host.install_hook(Path(paths.hook_path()), self.where / "state")),
            shares=str(shares),
            access="simulated",
            simulated=simulated,
        )
        file = self.where / "state" / "checkpoint.json"
        self.book = ShareBook(made, daemon=DaemonLink(self.endpoint), file=file, cdi_directory=CDI)
        self.book.gpus = {gpu.uuid: gpu for gpu in self.found}
        return self.book

    def kubelet(self, method, *uids):
        """One call as the kubelet makes it."""
        return asyncio.run(self._call(method, uids))

    async def _call(self, method, uids):
        gpus = Gpus()
        await gpus.set(self.found)
        kubelet = self.where / "kubelet"
        serving = asyncio.create_task(keep_served(DraDriver(self.book, gpus, self.objects, pool="n1"), kubelet))
        request = getattr(messages, f"{method}Request")()
        for uid in uids:
            request.claims.add(namespace="default", uid=uid, name=uid)
        async with grpc.aio.insecure_channel(f"unix:{kubelet}/plugins/gemlet.dev/dra.sock") as channel:
            call = services.method(channel, services.dra_service("v1"), method)
            answer = await call(request, wait_for_ready=True, timeout=20)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return answer.claims

    def container(self, name, seconds="0"):
        """Starts the probe with a CDI device."""
        command = [
            BIN / "podman", "--root", self.where / "podman", "--runroot", self.where / "podman-run",
            "--tmpdir", self.where / "podman-tmp",
            "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime", BIN / "runc",
            "--conmon", BIN / "conmon", "run", "--rm", "--network=none", "--pid=host", "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=4096:4096", "--security-opt=seccomp=unconfined", "--device", name,
            "--rootfs", self.rootfs, "/bin/probe", seconds,
        ]  # fmt: skip
        environment = os.environ | {"LD_LIBRARY_PATH": str(BIN.parent / "lib"), "HOME": str(self.where)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def node(tmp_path_factory):
    made = Node(RUN / "claims")
    yield made
    made.daemon.stop(kill=True)
    shutil.rmtree(made.where, ignore_errors=True)


def output(process):
    text, errors = process.communicate(timeout=60)
    assert "done" in text, f"{text}\n{errors}"
    return text


def values(text, word):
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith(word)]


def test_claims_of_one_gpu_are_containers_held_to_their_shares(node):
    """E7 and E9 as far as a node goes: prepare, containers, loss of the CDI files, a new agent, unprepare."""
    node.objects.allocate("u1", memory="16Gi", compute="25")
    node.objects.allocate("u2", memory="32Gi", compute="50")
    prepared = node.kubelet("NodePrepareResources", "u1", "u2")
    names = {uid: claim.devices[0].cdi_device_ids[0] for uid, claim in prepared.items()}
    assert names["u1"] == "k8s.gemlet.dev/share=claim-u1-gpu-0"

    running = {uid: node.container(name, "6") for uid, name in names.items()}
    said = {uid: output(process) for uid, process in running.items()}
    measured = {uid: mean(values(text, "share")[1:]) for uid, text in said.items()}
    print(f"\nhard 25 % and 50 % of one GPU, measured: {measured}", file=sys.stderr)
    assert 10 <= measured["u1"] <= 30
    assert 20 <= measured["u2"] <= 56
    assert {uid: values(text, "total") for uid, text in said.items()} == {"u1": [16384], "u2": [32768]}
    assert {uid: values(text, "refused") for uid, text in said.items()} == {"u1": [16385], "u2": [32769]}

    for path in CDI.iterdir():  # a reboot
        path.unlink()
    asyncio.run(node.restart().restore())
    assert values(output(node.container(names["u2"])), "total") == [32768]

    assert all(not answer.error for answer in node.kubelet("NodeUnprepareResources", "u1", "u2").values())
    assert cdi.share_ids(CDI) == set()
    assert not list((node.where / "state" / "shares").iterdir())
    gone = node.container(names["u1"])
    _, errors = gone.communicate(timeout=60)
    assert gone.returncode != 0
    assert "claim-u1-gpu-0" in errors
