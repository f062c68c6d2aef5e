"""What a node offers to the scheduler, and that it stays offered."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

from gemlet.kube import slices
from gemlet.kube.api_server import ApiError
from gemlet.kube.device_plugin import Gpus
from tests.unit.kube import fakes


class Api:
    """The apiserver as far as slices go; it writes quantities in its own words."""

    def __init__(self, *, taints=True, parts=True):
        self.slices = {}
        self.made = 0
        self.taints = taints
        self.parts = parts

    async def get(self, path, **query):
        if path == "/api/v1/nodes/n1":
            return {"metadata": {"uid": "node-uid"}}
        assert query == {"fieldSelector": "spec.nodeName=n1,spec.driver=gemlet.dev"}
        return {"items": copy.deepcopy(list(self.slices.values()))}

    async def create(self, path, body):
        self.made += 1
        name = f"{body['metadata']['generateName']}{self.made}"
        stored = copy.deepcopy(body)
        stored["metadata"]["name"] = name
        for device in stored["spec"]["devices"]:
            device["capacity"]["compute"]["value"] = "1e2"
            if not self.taints:
                device.pop("taints", None)
            if not self.parts:
                device.pop("allowMultipleAllocations")
        self.slices[name] = stored
        return stored

    async def delete(self, path):
        self.slices.pop(path.rsplit("/", 1)[1], None)


def test_a_gpu_says_what_can_be_asked_of_it():
    first, second = (slices.device(gpu) for gpu in fakes.GPUS)
    assert first["allowMultipleAllocations"] is True
    assert first["capacity"]["memory"]["value"] == "80Gi"
    assert first["capacity"]["memory"]["requestPolicy"]["validRange"] == {"min": "256Mi", "step": "1Mi", "max": "80Gi"}
    assert first["capacity"]["compute"]["requestPolicy"]["validRange"]["max"] == "100"
    assert first["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
    assert first["attributes"]["numaNode"] == {"int": 0}
    assert second["attributes"]["cudaComputeCapability"] == {"version": "9.0.0"}
    assert "nvlink" not in second["attributes"], "what is not known is left out"


def test_memory_is_a_whole_number_of_steps():
    odd = replace(fakes.GPUS[0], memory=fakes.GPUS[0].memory + 12345)
    assert slices.device(odd)["capacity"]["memory"]["value"] == "80Gi"


def test_slices_are_published_once_and_again_when_they_are_gone_or_wrong(run):
    api = Api()
    devices = [slices.device(gpu) for gpu in fakes.GPUS]

    async def scenario():
        assert await slices.publish(api, "n1", devices)
        assert not await slices.publish(api, "n1", devices)
        (only,) = api.slices.values()
        assert only["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        assert only["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
        assert await slices.publish(api, "n1", devices[:1])
        (only,) = api.slices.values()
        assert (only["spec"]["pool"]["generation"], len(only["spec"]["devices"])) == (2, 1)
        api.slices.clear()  # the kubelet does that when it starts
        assert await slices.publish(api, "n1", devices)

    run(scenario())


def seen(healthy, *, serving=True):
    gpus = Gpus()
    gpus.all, gpus.healthy, gpus.serving = list(fakes.GPUS), {gpu.uuid for gpu in healthy}, serving
    return [slices.device(gpu, slices.taint(gpu, gpus, failed="NoExecute")) for gpu in gpus.all]


@pytest.mark.parametrize("node", ["n" * 253, "a." * 126 + "a", "n1"])
def test_the_slice_of_a_node_of_any_name_has_a_name(node):
    made = slices.resource_slice(node, [], generation=1, owner=None)
    name = made["metadata"]["generateName"]
    assert len(name) <= 253
    assert re.fullmatch(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)*[a-z0-9]([-a-z0-9]*[a-z0-9])?", f"{name}x")
    assert made["spec"]["nodeName"] == made["spec"]["pool"]["name"] == node


def test_a_gpu_that_nothing_can_be_placed_on_is_tainted_and_stays_listed():
    first, second = seen(fakes.GPUS[:1])
    assert "taints" not in first
    assert second["taints"] == [{"key": "gemlet.dev/failed", "effect": "NoExecute"}]
    without = [device["taints"] for device in seen(fakes.GPUS, serving=False)]
    assert without == [[{"key": "gemlet.dev/no-daemon", "effect": "NoSchedule"}]] * 2, "its pods go on"


def test_where_taints_are_dropped_a_failed_gpu_is_not_offered(run):
    """Kubernetes before 1.36."""
    api = Api(taints=False)

    async def scenario():
        assert await slices.publish(api, "n1", seen(fakes.GPUS[:1]))
        assert not await slices.publish(api, "n1", seen(fakes.GPUS[:1])), "once"
        (only,) = api.slices.values()
        assert [device["name"] for device in only["spec"]["devices"]] == [fakes.GPUS[0].device]
        assert await slices.publish(api, "n1", seen(fakes.GPUS))
        (only,) = api.slices.values()
        assert len(only["spec"]["devices"]) == 2

    run(scenario())


@pytest.mark.parametrize("parts", [True, False])
def test_where_no_parts_of_devices_are_given_the_log_says_so(run, caplog, parts):
    """Kubernetes 1.34 without the feature gate: the scheduler alone would say that no device matches."""
    api = Api(parts=parts)
    run(slices.publish(api, "n1", [slices.device(gpu) for gpu in fakes.GPUS]))
    assert ("DRAConsumableCapacity" in caplog.text) == (not parts)


@pytest.mark.parametrize("answer", [None, [], {}, {"items": None}, {"items": [None]}, {"items": [{"metadata": {}}]}])
def test_an_answer_that_is_no_list_of_slices_is_an_error_of_the_apiserver(run, answer):
    class Odd(Api):
        async def get(self, path, **query):
            return answer

    with pytest.raises(ApiError, match="cannot be read"):
        run(slices.publish(Odd(), "n1", []))
