"""The objects gemlet makes while it runs, against Kubernetes' schemas."""

from __future__ import annotations

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make chart-test` installs the schemas")

from gemlet.kube import slices  # noqa: E402
from gemlet.kube.admission import Cluster, patch, template  # noqa: E402
from gemlet.kube.ask import Ask  # noqa: E402
from gemlet.kube.inventory import Gpu  # noqa: E402
from gemlet.kube.pod_events import warning  # noqa: E402
from gemlet.kube.request import Amounts  # noqa: E402
from gemlet.model import Priority  # noqa: E402

GIB = 1024**3
VERSIONS = ("1.36", "1.37")
GPU = Gpu(
    index=0,
    uuid="GPU-0",
    name="NVIDIA H200",
    memory=141 * GIB,
    pcie_root="pci0000:00",
    numa=0,
    compute_capability=(9, 0),
    nvlink="GPU-0",
)


def pod():
    notes = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "25"}
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "annotations": notes},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    for operation in patch(made, Cluster(face="dra")):
        if operation["path"] == "/spec/resourceClaims":
            made["spec"]["resourceClaims"] = operation["value"]
        else:
            made["spec"]["containers"][0]["resources"] = operation["value"]
    return made


OBJECTS = {
    "slice": slices.resource_slice("n1", [slices.device(GPU)], generation=1, owner={"metadata": {"uid": "u"}}),
    "slice with a taint": slices.resource_slice(
        "n1", [slices.device(GPU, slices.Taint("gemlet.dev/failed"))], generation=1, owner=None
    ),
    "template": template(
        Ask(amounts=Amounts(memory=16 * GIB, compute=25, limit=80, priority=Priority.LATENCY)), "default"
    ),
    "template of several GPUs": template(
        Ask(amounts=Amounts(memory=16 * GIB, compute=25, limit=25), gpus=2, together="nvlink"), "default"
    ),
    "pod": pod(),
    "event": warning({"name": "p", "namespace": "default", "uid": "u"}, "text", reason="R", component="c")[1],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_fit_the_schemas(name, version):
    kubernetes_validate.validate(OBJECTS[name], version, strict=True)


def test_the_check_finds_mistakes():
    broken = slices.resource_slice("n1", [slices.device(GPU)], generation=1, owner=None)
    broken["spec"]["devices"][0]["allowMultipleAllocation"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.37", strict=True)
