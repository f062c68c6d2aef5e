"""What admission makes of pods: several containers, several GPUs, pods that were written for others."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import pod
from tests.cluster.face import only_dra
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines

pytestmark = only_dra


@pytest.fixture
def translated(cluster):
    """The namespace as one whose pods are translated."""
    cluster.kubectl("label", "namespace", "default", "gemlet.dev/translate=enabled")
    yield
    cluster.kubectl("label", "namespace", "default", "gemlet.dev/translate-")


def test_containers_have_shares_of_their_own_by_annotation(cluster, face):
    both = pod("both", "probe", "1000", annotations={
        "c.gemlet.dev/memory": "16Gi", "c.gemlet.dev/compute": "25",
        "d.gemlet.dev/memory": "32Gi", "d.gemlet.dev/compute": "10",
    })  # fmt: skip
    both["spec"]["containers"].append(both["spec"]["containers"][0] | {"name": "d"})
    cluster.create(both)
    eventually(lambda: sorted(lines(cluster, "both", "total")) == ["16384", "32768"], "two first CUDA calls")
    cluster.kubectl("annotate", "--overwrite", "pod", "both", "d.gemlet.dev/compute-limit=5")
    eventually(lambda: "5 is not valid: expected 10" in cluster.events("both"), "an event about that container")


def test_several_gpus_by_annotation(cluster, face):
    cluster.create(pod("two", "probe", "1000", annotations=SHARE | {"gemlet.dev/gpus": "2"}))
    eventually(lambda: lines(cluster, "two", "total") == ["16384"], "first CUDA call")
    (status,) = cluster.get("pod", "two")["status"]["resourceClaimStatuses"]
    results = cluster.get("resourceclaim", status["resourceClaimName"])["status"]["allocation"]["devices"]["results"]
    assert {result["device"] for result in results} == {"gpu-0", "gpu-1"}


def test_pods_of_hami_and_kai_start_unedited(cluster, face, translated):
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    of_hami = pod("hami", "probe", "1000", resources={"limits": asked})
    of_hami["spec"]["schedulerName"] = "hami-scheduler"
    of_kai = pod("kai", "probe", "1000", annotations={"gpu-fraction": "0.25"})
    of_kai["spec"]["schedulerName"] = "kai-scheduler"
    cluster.create(of_hami, of_kai)
    eventually(lambda: lines(cluster, "hami", "total") == ["3000"], "first CUDA call")
    eventually(lambda: lines(cluster, "kai", "total") == [str(143771 // 4)], "first CUDA call")


def test_a_whole_gpu_becomes_a_share_where_that_is_asked_for(cluster, face, translated):
    """Gemini_UM's webhook."""
    cluster.gemlet.upgrade(admission={"plainGpu": {"compute": 20, "memory": "10Gi"}})
    try:
        cluster.create(pod("plain", "probe", "1000", resources={"limits": {"nvidia.com/gpu": "1"}}))
        eventually(lambda: lines(cluster, "plain", "total") == ["10240"], "first CUDA call")
        cluster.kubectl("label", "namespace", "default", "gemlet.dev/translate-")
        cluster.create(pod("whole", "probe", resources={"limits": {"nvidia.com/gpu": "1"}}))
        eventually(lambda: "Insufficient nvidia.com/gpu" in cluster.events("whole"), "an event of the scheduler")
        cluster.kubectl("label", "namespace", "default", "gemlet.dev/translate=enabled")
    finally:
        cluster.gemlet.upgrade()
