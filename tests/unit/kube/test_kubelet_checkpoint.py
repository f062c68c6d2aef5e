"""What the kubelet's own checkpoint tells of pods, in the forms of old and new ones, and of damaged ones."""

from __future__ import annotations

import json

import pytest

from gemlet.kube import pod_resources
from gemlet.kube.kubelet_checkpoint import KubeletCheckpoint, is_of
from gemlet.kube.protocol import podresources_pb2
from gemlet.kube.share import Pod

SLOT, UID = "gemlet.dev/share", "0e3ee5d7-9f2b-4b43-9e9b-0c5d3b1c7d11"
HASH = "3f0b6e3c4f8d4f1f9a1b2c3d4e5f6071"


def written(devices):
    entry = {"PodUID": UID, "ContainerName": "c", "ResourceName": SLOT, "DeviceIDs": devices, "AllocResp": "CgA="}
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {SLOT: ["a", "b"]}}
    return json.dumps({"Data": data, "Checksum": 1234567890})


@pytest.mark.parametrize("devices", [{"-1": ["a"], "0": ["b"], "1": None}, ["a", "b"]])
def test_devices_are_of_the_pod_with_a_uid(tmp_path, devices):
    file = tmp_path / "checkpoint"
    file.write_text(written(devices))
    assert KubeletCheckpoint(file).uids() == {(SLOT, "a"): UID, (SLOT, "b"): UID}


@pytest.mark.parametrize("devices", [None, {}, []])
def test_a_container_without_devices_is_none(tmp_path, devices):
    file = tmp_path / "checkpoint"
    file.write_text(written(devices))
    assert KubeletCheckpoint(file).uids() == {}


@pytest.mark.parametrize("text", ["", "{}", '{"Data": 1}', written(["a"])[:-20], written(7), "[" * 100_000])
def test_one_that_cannot_be_read_tells_nothing_and_says_so_once(tmp_path, text, caplog):
    file = tmp_path / "checkpoint"
    file.write_text(text)
    checkpoint = KubeletCheckpoint(file)
    assert [checkpoint.uids(), checkpoint.uids()] == [{}, {}]
    assert len(caplog.records) == 1


def test_a_kubelet_without_one_is_as_before(tmp_path, caplog):
    assert KubeletCheckpoint(tmp_path / "none").uids() == {}
    assert not caplog.records
    assert KubeletCheckpoint(tmp_path).uids() == {}, "a directory"


def test_the_table_of_containers_has_the_uids(tmp_path):
    reply = podresources_pb2.ListPodResourcesResponse()
    container = reply.pod_resources.add(name="p", namespace="ns").containers.add(name="c")
    container.devices.add(resource_name=SLOT, device_ids=["a", "b"])
    table = pod_resources.read(reply, {(SLOT, "a"): UID})
    assert table.holder(SLOT, ["a"]) == Pod(namespace="ns", name="p", container="c", uid=UID)
    assert table.holder(SLOT, ["b"]) == Pod(namespace="ns", name="p", container="c")


def mirror(uid, **more):
    return {"uid": UID, "annotations": {"kubernetes.io/config.hash": uid} | more}


def test_a_static_pod_is_known_by_its_mirror():
    marked = {"kubernetes.io/config.mirror": HASH}
    assert is_of(UID, {"uid": UID})
    assert not is_of(UID, {"uid": "another"})
    assert is_of(HASH, mirror(HASH, **marked))
    assert not is_of(HASH, mirror("0" * 32, **marked))
    assert not is_of(HASH, mirror(HASH)), "anybody writes annotations"
    other = "7" + UID[1:]
    assert not is_of(other, mirror(other, **marked)), "nor is a pod of the apiserver known by one"
