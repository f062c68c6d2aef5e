"""What a container is given: one function, three notations."""

from __future__ import annotations

import json

import pytest

from gemlet.kube import cdi
from gemlet.kube.device_plugin import allocate_response
from gemlet.kube.edits import COMMON_NODES, Host, share_edits
from tests.unit.kube import fakes

HOOK = "/var/lib/gemlet/hook/1/libgemhook.so.1"


def edits(access="runtime", **host):
    nodes = {fakes.FIRST: "/dev/nvidia0"}
    made = Host(hook=HOOK, shares="/var/lib/gemlet/shares", access=access, nodes=nodes, **host)
    return share_edits((fakes.FIRST,), 16 * fakes.GIB, 25, 80, "claim-u1", host=made)


def test_a_share_is_its_socket_and_never_runs_unmanaged():
    made = edits()
    assert made.env["LD_PRELOAD"] == "/opt/gemlet/libgemhook.so.1"
    assert made.env["GEMLET_SOCKET"] == "/run/gemlet/gemlet.sock"
    assert made.env["GEMLET_STRICT"] == "1"
    assert "GEMLET_GROUP" not in made.env, "the socket decides the group"
    assert [(m.host, m.container, m.read_only) for m in made.mounts] == [
        (HOOK, "/opt/gemlet/libgemhook.so.1", True),
        ("/var/lib/gemlet/shares/claim-u1", "/run/gemlet", True),
        (f"{HOOK}.share", "/opt/gemlet/libgemhook.so.1.share", True),
    ]


def test_the_gpu_is_named_by_uuid_in_each_kind_of_access():
    assert edits("runtime").env["NVIDIA_VISIBLE_DEVICES"] == fakes.FIRST
    assert edits("cdi").cdi == (f"nvidia.com/gpu={fakes.FIRST}",)
    assert edits("nodes").device_nodes == ("/dev/nvidia0", *COMMON_NODES)
    # An image may name all GPUs, and the node's default runtime be NVIDIA's, or the pod name it.
    assert edits("cdi").env["NVIDIA_VISIBLE_DEVICES"] == edits("nodes").env["NVIDIA_VISIBLE_DEVICES"] == "void"
    simulated = edits("simulated", simulated=("/lib/sim", "/profiles", "/run/gemlet/machine"))
    assert simulated.env["CUDA_VISIBLE_DEVICES"] == fakes.FIRST
    assert {m.host: m.read_only for m in simulated.mounts}["/run/gemlet/machine"] is False


def test_a_preload_file_holds_programs_that_clear_their_environment():
    made = edits(preload_file="/var/lib/gemlet/hook/1/ld.so.preload")
    assert made.mounts[-1].container == "/etc/ld.so.preload"


def test_allocate_and_cdi_say_the_same():
    made = edits("nodes")
    answer = allocate_response(made)
    content = cdi.specification("claim-u1", ["gpu-0"], made)["containerEdits"]
    assert dict(answer.envs) == dict(entry.split("=", 1) for entry in content["env"])
    assert {(m.host_path, m.container_path, m.read_only) for m in answer.mounts} == {
        (m["hostPath"], m["containerPath"], "ro" in m["options"]) for m in content["mounts"]
    }
    assert [d.host_path for d in answer.devices] == [d["path"] for d in content["deviceNodes"]]


def test_a_container_that_could_not_execute_the_hook_does_not_start():
    """In a user namespace the noexec of the host's file system stays, and the loader goes on without the hook."""
    content = cdi.specification("claim-u1", ["gpu-0"], edits(preload_file="/x"))["containerEdits"]
    executed = [mount["hostPath"] for mount in content["mounts"] if "exec" in mount["options"]]
    assert executed == [HOOK], "and no socket in a /run that is noexec keeps it from starting"


def test_cdi_names_hold_the_claim_and_the_device():
    content = cdi.specification("claim-u1", ["gpu-0", "gpu-1"], edits())
    names = [f"{content['kind']}={device['name']}" for device in content["devices"]]
    assert names == ["k8s.gemlet.dev/share=claim-u1-gpu-0", "k8s.gemlet.dev/share=claim-u1-gpu-1"]
    assert names[0] == cdi.device_id("claim-u1", "gpu-0")


def test_cdi_files_are_written_once_and_survive_the_loss_of_their_directory(tmp_path):
    directory = tmp_path / "run" / "cdi"
    content = cdi.specification("claim-u1", ["gpu-0"], edits())
    assert cdi.write(directory, "claim-u1", content)
    assert not cdi.write(directory, "claim-u1", content), "nothing changed"
    assert json.loads(cdi.path_of(directory, "claim-u1").read_text()) == content
    assert [path.name for path in directory.iterdir()] == ["gemlet.dev-claim-u1.json"]
    assert cdi.share_ids(directory) == {"claim-u1"}
    cdi.remove(directory, "claim-u1")
    cdi.remove(directory, "claim-u1")
    assert cdi.share_ids(directory) == set()
    directory.rmdir()
    assert cdi.write(directory, "claim-u1", content)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    directory = tmp_path / "cdi"
    cdi.write(directory, "a", {"kind": "old"})
    with pytest.raises(TypeError):
        cdi.write(directory, "a", {"kind": object()})
    assert json.loads(cdi.path_of(directory, "a").read_text()) == {"kind": "old"}
