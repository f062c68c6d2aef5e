"""Pods with more of something than anybody has: refused, or looked at once, since others wait meanwhile."""

from __future__ import annotations

import difflib

import pytest

from gemlet.kube import admission, ask, escape
from gemlet.kube.admission import patch
from gemlet.kube.claims import check_pod
from gemlet.kube.request import BadRequest
from tests.unit.kube.test_admission import DRA, SHARE, SLOTS, UNITS, pod


@pytest.mark.parametrize("cluster", [SLOTS, UNITS, DRA])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_pod_too_large_to_be_checked_is_refused(cluster, kind):
    """The webhook answers others meanwhile: 4000 containers with annotations and shares of their own took a minute."""
    seen = pod({f"c{number}.{name}": value for number in range(400) for name, value in SHARE.items()})
    seen["spec"][kind] = [{"name": f"c{number}"} for number in range(400)]
    with pytest.raises(BadRequest, match="too many to be checked"):
        patch(seen, cluster)
    many = pod(SHARE, *[{}] * 1001)
    with pytest.raises(BadRequest, match="too many to be checked"):
        patch(many, cluster)


def test_names_that_nobody_types_are_not_compared(monkeypatch):
    """Two of 8000 characters took six seconds, and nothing has looked at a pod's names before the webhook does."""
    compared = []

    def compare(word, known, **_):
        compared.append((word, list(known)))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", compare)
    long, short = "a" * 8000, {f"{name}.gemlet.dev/memory": "1Gi" for name in ("b", "a" * 8000)}
    for number, name in enumerate(short):
        containers = [{"name": f"{long}{number}"}, *({"name": f"x{each}"} for each in range(900))]
        with pytest.raises(BadRequest, match="which the pod does not have"):
            patch(pod({name: "1Gi"}, *containers), SLOTS)
    ((word, known),) = compared
    assert word == "b"
    assert len(known) <= 256
    assert max(map(len, known)) < 10


def test_a_number_of_gpus_of_thousands_of_digits_is_refused():
    with pytest.raises(BadRequest, match="is not a number of GPUs"):
        patch(pod(SHARE | {"gemlet.dev/gpus": "1" * 5000}), DRA)


@pytest.mark.parametrize("kind", ["volumeMounts", "volumeDevices"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_more_mounts_than_anybody_has_are_refused_before_one_is_looked_at(kind, where):
    """80,000 of paths of their own fit into a review, and kept others waiting for three seconds."""
    mounts = [{"name": "v", "mountPath": "/m", "devicePath": "/m"}] * (escape.MOST_MOUNTS // 2 + 1)
    seen = pod(SHARE, {kind: mounts})
    seen["spec"][where] = [*seen["spec"].get(where, []), {"name": "more", kind: mounts}]
    with pytest.raises(BadRequest, match=rf"{len(mounts) * 2} mounts are too many"):
        patch(seen, DRA)
    seen["spec"][where][-1][kind] = []
    assert patch(seen | {"metadata": {"annotations": {}}}, DRA) == []


def test_more_mounts_than_admission_takes_are_refused_by_the_node_too():
    """The label that tells admission to look away is anybody's, and each change of such a pod took the agent a second,
    in which no pod of others was looked at."""
    uses = {"resources": {"claims": [{"name": "gpu"}]}, "volumeMounts": [{"name": "v", "mountPath": "/m"}] * 10_001}
    seen = pod({}, uses, resourceClaims=[{"name": "gpu", "resourceClaimName": "u1"}])
    check_pod(seen, {"other"})
    with pytest.raises(BadRequest, match="10001 mounts are too many"):
        check_pod(seen, {"u1"})


def test_the_path_of_many_mounts_is_taken_apart_once(monkeypatch):
    """83,000 mounts of one volume fit into a review, and each path of 4 KB takes 100 us."""
    taken = []
    real = escape._parts
    monkeypatch.setattr(escape, "_parts", lambda path: taken.append(path) or real(path))
    volumes = [{"name": "v", "emptyDir": {}}]
    mounts = [{"name": "v", "mountPath": "/m" * 1000}] * 1000
    patch(pod(SHARE, {"volumeMounts": mounts}, volumes=volumes), DRA)
    assert len(taken) < 10
    for mount, path in (("/m", "/" + "../" * 2000 + "srv"), ("/m" * 3000, "/srv")):
        seen = pod(
            SHARE,
            {"volumeMounts": [{"name": "v", "mountPath": mount}]},
            volumes=[{"name": "v", "hostPath": {"path": path}}],
        )
        with pytest.raises(BadRequest, match="more than 4096"):
            patch(seen, DRA)


def test_annotations_are_read_once_for_all_containers(monkeypatch):
    """A thousand containers of units have two thousand annotations: 4 s, of which the apiserver waits 5."""
    read, real = [], ask.Annotations.__init__
    monkeypatch.setattr(ask.Annotations, "__init__", lambda self, given: read.append(len(given)) or real(self, given))
    checked, check = [], admission.check_escape
    monkeypatch.setattr(
        admission, "check_escape", lambda seen, held, *paths, **given: checked.append(len(held)) or check(seen, held)
    )
    units = {"gemlet.dev/compute-units": "1", "gemlet.dev/memory-units": "1"}
    containers = [{"name": f"c{number}", "resources": {"limits": units}} for number in range(1000)]
    patch({"metadata": {"annotations": {}}, "spec": {"containers": containers}}, DRA)
    assert len(read) < 5
    assert checked == [1000, 0]
