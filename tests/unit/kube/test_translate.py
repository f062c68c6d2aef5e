"""Pods that were written for HAMi, for KAI, or for a whole GPU."""

from __future__ import annotations

import pytest

from gemlet.kube.admission import Cluster, patch
from gemlet.kube.ask import asks
from gemlet.kube.request import BadRequest
from gemlet.kube.translate import Defaults, translate
from gemlet.model import Priority
from tests.unit.kube.test_admission import apply, pod

GIB, MIB = 1024**3, 1024**2
DEFAULTS = Defaults(gpu_memory=80 * GIB)
DRA = Cluster(face="dra", gpu_memory=80 * GIB)


def hami(**resources):
    asked = {f"nvidia.com/{name.replace('_', '-')}": value for name, value in resources.items()}
    return {"resources": {"limits": {"cpu": "2", **asked}, "requests": {"cpu": "1", **asked}}}


def translated(seen, defaults=DEFAULTS):
    return apply(seen, [operation | {"op": "add"} for operation in translate(seen, defaults)])


def test_a_pod_of_hami_asks_for_the_same_amounts():
    seen = pod({"x": "y"}, hami(gpu="1", gpumem="3000", gpucores="30"), schedulerName="hami-scheduler")
    made = translated(seen)
    (ask,) = asks(made).values()
    assert (ask.amounts.memory, ask.amounts.compute, ask.amounts.limit, ask.gpus) == (3000 * MIB, 30, 30, 1)
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["metadata"]["annotations"]["x"] == "y"
    assert [operation["path"] for operation in patch(made, DRA)] == [
        "/spec/resourceClaims",
        "/spec/containers/0/resources",
    ]
    assert translate(made, DEFAULTS) == [], "once"


def test_amounts_of_gemlets_own_for_the_whole_pod_count_for_the_containers_that_they_are_meant_for():
    """They were replaced by those of a plain GPU: all of it."""
    own = {"gemlet.dev/memory": "8Gi", "gemlet.dev/compute": "25"}
    for notes in (own, own | {"gemlet.dev/container": "c0"}):
        seen = pod(notes, hami(gpu="1"))
        assert translate(seen, DEFAULTS) == []
        with pytest.raises(BadRequest, match="asks for both a share and a GPU"):
            patch(seen, DRA)
    made = translated(pod(own | {"gemlet.dev/container": "c0"}, {}, hami(gpu="1")))
    assert {number: ask.amounts.compute for number, ask in asks(made).items()} == {0: 25, 1: 100}
    (ask,) = asks(translated(pod({"gemlet.dev/priority": "latency"}, hami(gpu="1")))).values()
    assert ask.amounts.compute == 100
    assert ask.amounts.priority is Priority.LATENCY, "which is no amount"


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (hami(gpu="2", gpumem_percentage="50", gpucores="10"), (40 * GIB, 10, 10, 2, Priority.NORMAL)),
        (hami(gpu="1", gpumem="1024"), (GIB, 1, 100, 1, Priority.NORMAL)),
        (hami(gpu="1", gpucores="50"), (80 * GIB, 50, 50, 1, Priority.NORMAL)),
        (hami(gpu="1", gpumem="1024", gpucores="0"), (GIB, 1, 100, 1, Priority.NORMAL)),
        (hami(gpu="1", gpumem="1024", gpucores="20", priority="0"), (GIB, 20, 20, 1, Priority.LATENCY)),
        (hami(gpu="1", gpumem="1024", gpucores="20", priority="1"), (GIB, 20, 20, 1, Priority.BEST_EFFORT)),
        (hami(gpu="1"), (80 * GIB, 100, 100, 1, Priority.NORMAL)),
    ],
)
def test_what_hami_leaves_open_is_what_it_means_there(container, expected):
    (ask,) = asks(translated(pod({}, container))).values()
    amounts = ask.amounts
    assert (amounts.memory, amounts.compute, amounts.limit, ask.gpus, amounts.priority) == expected


def test_a_plain_gpu_is_the_share_that_the_cluster_gives_for_one():
    defaults = Defaults(gpu_memory=80 * GIB, compute=25, memory=10 * GIB)
    (ask,) = asks(translated(pod({}, hami(gpu="1")), defaults)).values()
    assert (ask.amounts.memory, ask.amounts.compute) == (10 * GIB, 25)


def test_each_container_of_hami_has_its_own():
    made = translated(
        pod({}, hami(gpu="1", gpumem="2048", gpucores="10"), {}, hami(gpu="1", gpumem="1024", gpucores="5"))
    )
    assert {number: ask.amounts.compute for number, ask in asks(made).items()} == {0: 10, 2: 5}


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"gpu-fraction": "0.5"}, (0, 40 * GIB, 50, 1)),
        ({"gpu-memory": "20480"}, (0, 20 * GIB, 25, 1)),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, (0, 20 * GIB, 25, 2)),
        ({"gpu-fraction": "0.005"}, (0, 409 * MIB, 1, 1)),
        ({"gpu-fraction": "1", "gpu-fraction-container-name": "c1"}, (1, 80 * GIB, 100, 1)),
    ],
)
def test_a_pod_of_kai_asks_for_its_part_and_may_use_what_is_free(notes, expected):
    made = translated(pod(notes, {}, {}, schedulerName="kai-scheduler"))
    assert all(".gemlet.dev/" in key for key in made["metadata"]["annotations"]), "KAI's own would only mislead"
    ((number, ask),) = asks(made).items()
    assert (number, ask.amounts.memory, ask.amounts.compute, ask.gpus) == expected
    assert ask.amounts.limit == 100
    assert made["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (pod({"gpu-fraction": "2"}), r"annotations\[gpu-fraction\]: 2 is not above 0 and at most 1"),
        (pod({"gpu-fraction": "half"}), "half is not above 0"),
        (pod({"gpu-memory": "much"}), r"annotations\[gpu-memory\]: 'much' is not a quantity"),
        (pod({"gpu-fraction": "1", "gpu-fraction-container-name": "x"}), "names container x"),
        (pod({}, hami(gpu="1", gpumem="much")), r"limits\[nvidia.com/gpumem\]: 'much' is not a quantity"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field(seen, text):
    with pytest.raises(BadRequest, match=text):
        translate(seen, DEFAULTS)


def test_a_part_of_an_unknown_size_is_refused_with_a_hint():
    for seen in (pod({"gpu-fraction": "0.5"}), pod({}, hami(gpu="1", gpumem_percentage="50"))):
        with pytest.raises(BadRequest, match="give the chart gpuMemory"):
            translate(seen, Defaults())


def test_other_pods_and_gemlets_own_words_are_left_alone():
    own = {"c0.gemlet.dev/memory": "1Gi", "c0.gemlet.dev/compute": "5"}
    for seen in (pod(), pod({}, {"resources": {"limits": {"cpu": "1"}}}), pod(own), pod({}, hami(gpu="0"))):
        assert translate(seen, DEFAULTS) == []


def test_a_pod_of_countless_containers_is_not_translated():
    """50,000 took 2 s, in which nobody else was answered."""
    with pytest.raises(BadRequest, match="too many"):
        translate(pod({}, *[hami(gpu="1")] * 1001), DEFAULTS)
