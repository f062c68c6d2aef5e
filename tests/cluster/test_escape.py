"""What holds programs that go past their environment: the preload file, and the file that names the share's socket."""

from __future__ import annotations

import pytest

from tests.cluster.claims import claiming, template
from tests.cluster.cluster import Refused, pod
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines

DRIVER = ("LD_LIBRARY_PATH=/opt/gemlet/lib/sim", "GEMLET_SIM_DIR=/run/gemlet-machine")  # else there is no GPU at all


@pytest.fixture(scope="module")
def preloaded(cluster, face):
    """The cluster with /etc/ld.so.preload in the containers that have a share."""
    cluster.gemlet.upgrade(preloadFile=True)
    face.ready(cluster)
    yield cluster
    cluster.delete(*(item["metadata"]["name"] for item in cluster.get("pods")["items"]))
    cluster.gemlet.upgrade()
    face.ready(cluster)


def test_a_program_that_clears_the_variable_is_held(preloaded, face):
    preloaded.create(pod("bare", "env", "-u", "LD_PRELOAD", "probe", annotations=SHARE))
    eventually(lambda: lines(preloaded, "bare", "refused"), "allocations until one is refused")
    assert lines(preloaded, "bare", "total") == ["16384"]
    assert lines(preloaded, "bare", "refused") == ["16385"]


def test_a_program_without_any_environment_is_held(preloaded, face):
    preloaded.create(pod("bare", "env", "-i", *DRIVER, "probe", annotations=SHARE))
    eventually(lambda: lines(preloaded, "bare", "refused"), "allocations until one is refused")
    assert lines(preloaded, "bare", "total") == ["16384"]
    assert lines(preloaded, "bare", "refused") == ["16385"]


def test_a_program_that_names_another_daemon_is_held(preloaded, face):
    """And would run without one."""
    other = ("GEMLET_SOCKET=/tmp/nobody", "GEMLET_STRICT=0")
    preloaded.create(pod("other", "env", *other, "probe", annotations=SHARE))
    eventually(lambda: lines(preloaded, "other", "total"), "first CUDA call")
    assert lines(preloaded, "other", "total") == ["16384"]


def test_a_preload_out_of_a_configmap_does_not_take_the_place_of_the_hook(preloaded, face):
    """Admission sees that there is a ConfigMap, not what is in it."""
    variables = {"LD_PRELOAD": "/bin/nothing.so"}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "way-out", "namespace": "default"}}
    preloaded.apply(made | {"data": variables})
    source = [{"configMapRef": {"name": "way-out"}}]
    preloaded.create(pod("from", "probe", annotations=SHARE, envFrom=source))
    eventually(lambda: lines(preloaded, "from", "total"), "first CUDA call")
    assert lines(preloaded, "from", "total") == ["16384"]


HOOK = "/opt/gemlet/libgemhook.so.1"


@pytest.mark.parametrize(
    "way",
    [
        {"terminationMessagePath": HOOK},
        {"terminationMessagePath": f"/proc/self/root{HOOK}"},
        {"volumeMounts": [{"name": "v", "mountPath": "/proc/self/root/opt/gemlet"}]},
    ],
)
def test_what_hides_the_hook_does_not_start(cluster, face, way):
    """It took the limits away. By the webhook, and by the node where nobody asked that."""
    annotated, ignored = pod("a", "probe", annotations=SHARE, **way), pod("b", "probe", **way)
    if face.name == "dra":
        cluster.create(template("plain"))
        claiming(ignored, "plain")
    else:
        ignored["spec"]["containers"][0]["resources"] = {"limits": {"gemlet.dev/share": "1"}}
        ignored["metadata"]["labels"] = {"gemlet.dev/webhook": "ignore"}
    try:
        for each in (annotated, ignored):
            each["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        with pytest.raises(Refused, match=r"mount it (elsewhere|outside /proc)"):
            cluster.create(annotated)
        cluster.create(ignored)
        eventually(lambda: "; mount it " in cluster.events("b"), "the event that says why")
        assert cluster.log("b") == ""
    finally:
        cluster.kubectl("delete", "resourceclaimtemplates", "--all", check=False)
