"""What differs between the releases of Kubernetes on which these tests run: flags, and configuration files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OLD = os.environ.get("GEMLET_CLUSTER_RELEASE") == "1.20"  # `make cluster-test-old`: the last without all that is new
PACKING = "pack"  # name of the scheduler's profile that fills a node before it takes the next
FACES = ("slots",) if OLD else ("dra", "slots")  # how gemlet can offer its GPUs there

# On top of what `helm install` does without any value: there is no GPU here. Kubernetes 1.20 knows no matchConditions,
# so there pods are chosen by a label.
VALUES: dict[str, Any] = {"gpuAccess": "simulated", "gpuMemory": "143771MiB"}
if OLD:
    VALUES["admission"] = {"podSelector": {"gpu": "shared"}}


# Requests a second of a controller and of the scheduler, and at a time: what clusters of hundreds of nodes set.
RATE, BURST = 300, 600


def controllers() -> Sequence[str]:
    """Flags of the controller manager."""
    rate = (f"--kube-api-qps={RATE}", f"--kube-api-burst={BURST}")
    return ("--port=0", *rate) if OLD else rate


def scheduler(kubeconfig: Path) -> dict[str, Any]:
    """The stock scheduler with a second profile, PACKING; docs/kubernetes.md shows it."""
    most = {"resources": [{"name": "gemlet.dev/share", "weight": 1}]}
    if OLD:
        version, plugin, arguments = "v1beta1", "NodeResourcesMostAllocated", most
    else:
        version, plugin, arguments = "v1", "NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated", **most}}
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": plugin}]}
    made: dict[str, Any] = {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": RATE, "burst": BURST},
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {
                "schedulerName": PACKING,
                "plugins": {"score": only},
                "pluginConfig": [{"name": plugin, "args": arguments}],
            },
        ],
    }
    return made | {"healthzBindAddress": "", "metricsBindAddress": ""} if OLD else made


def containerd(run: Path, *, network: Path, plugins: Path) -> str:
    """containerd's configuration; everything of it is below ``run``."""
    common = f"""
            version = {2 if OLD else 3}
            root = "{run}/containerd/root"
            state = "{run}/containerd/state"
            disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
            [grpc]
            address = "{run}/containerd.sock"
            """
    if OLD:
        return f"""{common}
            [plugins."io.containerd.grpc.v1.cri"]
            sandbox_image = "local/pause:1"
            restrict_oom_score_adj = true
            [plugins."io.containerd.grpc.v1.cri".cni]
            bin_dir = "{plugins}"
            conf_dir = "{network}"
            """
    return f"""{common}
            [plugins."io.containerd.cri.v1.images".pinned_images]
            sandbox = "local/pause:1"
            [plugins."io.containerd.cri.v1.runtime"]
            restrict_oom_score_adj = true
            cdi_spec_dirs = ["/var/run/cdi"]
            [plugins."io.containerd.cri.v1.runtime".cni]
            bin_dirs = ["{plugins}"]
            conf_dir = "{network}"
            [plugins."io.containerd.nri.v1.nri"]
            disable = true
            [plugins."io.containerd.internal.v1.opt"]
            path = "{run}/containerd/opt"
            """


def kubelet(run: Path, *, address: str, authority: Path, cgroup: str) -> dict[str, Any]:
    """The kubelet's configuration file. ``cgroup``: below which it has those of pods."""
    made: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
        "failSwapOn": False, "port": 10250, "readOnlyPort": 0, "healthzPort": 10248, "address": address,
        "authentication": {"x509": {"clientCAFile": str(authority)}},
        "authorization": {"mode": "Webhook"}, "imageGCHighThresholdPercent": 100, "cgroupsPerQOS": False,
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
        "enforceNodeAllocatable": [], "syncFrequency": "1s", "nodeStatusUpdateFrequency": "1s", "kubeletCgroups": "/",
    }  # fmt: skip
    if not OLD:
        endpoint = f"unix://{run}/containerd.sock"
        made |= {
            "containerRuntimeEndpoint": endpoint,
            "cgroupsPerQOS": True,  # by which a container's pod is known before it starts
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
        }  # the machine may have the cgroups of before
    return made


def kubelet_flags(run: Path) -> Sequence[str]:
    """What is not in its configuration file."""
    if not OLD:
        return ("--runtime-cgroups=/",)
    endpoint = f"--container-runtime-endpoint=unix://{run}/containerd.sock"
    return ("--container-runtime=remote", endpoint, "--pod-infra-container-image=local/pause:1", "--runtime-cgroups=/")
