"""Pods before and after admission."""

from __future__ import annotations

import copy
import dataclasses
import re

import pytest

from gemlet.errors import GemletError
from gemlet.kube.admission import Cluster, claimed, patch, template, template_name
from gemlet.kube.ask import Ask, asks
from gemlet.kube.claims import check_pod, read_claim
from gemlet.kube.escape import check_host_paths
from gemlet.kube.request import Amounts, BadRequest
from gemlet.model import Priority
from tests.unit.kube import fakes

GIB = 1024**3
SLOTS = Cluster(face="slots", gpu_memory=80 * GIB)
SIMULATED = dataclasses.replace(SLOTS, host_pid=True)
UNITS = Cluster(face="units", gpu_memory=80 * GIB)
DRA = Cluster(face="dra", gpu_memory=80 * GIB)
SHARE = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "25"}


def pod(annotations=None, *containers, **spec):
    made = [{"name": f"c{number}", "image": "i"} | container for number, container in enumerate(containers or [{}])]
    return {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": {"containers": made} | spec}


def apply(seen, operations):
    changed = copy.deepcopy(seen)
    for operation in operations:
        assert operation["op"] == "add"
        place = changed
        *path, last = operation["path"].strip("/").split("/")
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = operation["value"]
    return changed


def limits(**resources):
    return {"resources": {"limits": {name.replace("__", "."): value for name, value in resources.items()}}}


def test_a_pod_that_asks_for_nothing_is_not_touched():
    plain = pod({"example.com/x": "1"}, {"env": [{"name": "LD_PRELOAD", "value": "x"}]})
    assert patch(plain, SLOTS) == []


@pytest.mark.parametrize("cluster", [SLOTS, UNITS, DRA])
def test_a_patch_made_twice_is_made_once(cluster):
    seen = pod(SHARE, {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}})
    once = apply(seen, patch(seen, cluster))
    assert patch(once, cluster) == []
    assert once["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1", "what was there stays"


def test_units_become_a_claim_where_there_are_claims():
    """So that the scheduler places the pod on one GPU, or lets it wait."""
    units = {"gemlet.dev/compute-units": "50", "gemlet.dev/memory-units": "64", "cpu": "1"}
    seen = pod({"gemlet.dev/compute-limit": "80"}, {"resources": {"limits": units, "requests": units}}, {})
    after = apply(seen, patch(seen, DRA))
    first, second = after["spec"]["containers"]
    assert first["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}, "claims": [{"name": "gemlet"}]}
    assert "claims" not in second.get("resources", {})
    (ask,) = asks(after).values()
    assert ask.amounts == Amounts(memory=16 * GIB, compute=50, limit=80)
    assert claimed(seen) == [ask]
    assert patch(after, DRA) == []


def test_half_of_the_units_is_refused_where_there_are_claims():
    with pytest.raises(BadRequest, match=r"memory-units.*is missing"):
        patch(pod({}, limits(**{"gemlet.dev/compute-units": "50"})), DRA)


def test_annotations_become_a_slot():
    seen = pod(SHARE)
    assert apply(seen, patch(seen, SLOTS))["spec"]["containers"][0]["resources"] == {
        "limits": {"gemlet.dev/share": "1"},
        "requests": {"gemlet.dev/share": "1"},
    }


def test_annotations_become_units_with_memory_rounded_up():
    seen = pod(SHARE | {"gemlet.dev/memory": "16385Mi"})
    asked = apply(seen, patch(seen, UNITS))["spec"]["containers"][0]["resources"]["limits"]
    assert asked == {"gemlet.dev/compute-units": "25", "gemlet.dev/memory-units": "65"}


def test_annotations_become_a_claim_from_a_template_of_that_amount():
    seen = pod(SHARE)
    made = apply(seen, patch(seen, DRA))["spec"]
    name = template_name(Ask(amounts=Amounts(memory=16 * GIB, compute=25, limit=25)))
    assert made["resourceClaims"] == [{"name": "gemlet", "resourceClaimTemplateName": name}]
    assert made["containers"][0]["resources"]["claims"] == [{"name": "gemlet"}]
    assert name != template_name(Ask(amounts=Amounts(memory=16 * GIB, compute=25, limit=26)))


def test_the_template_asks_for_exactly_that():
    spec = template(Ask(amounts=Amounts(memory=16 * GIB, compute=25, limit=80)), "default")["spec"]["spec"]["devices"]
    assert spec["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "16Gi", "compute": "25"}
    assert spec["config"][0]["opaque"]["parameters"]["computeLimit"] == 80


@pytest.mark.parametrize("more", [{}, {"limit": 80}, {"priority": Priority.LATENCY}, {"resident": 4 * GIB}])
def test_a_claim_of_the_template_is_the_share_that_was_asked_for(more):
    """Also where the template has no parameters, without which Kueue takes it."""
    amounts = Amounts(**{"memory": 16 * GIB, "compute": 25, "limit": 25} | more)
    devices = template(Ask(amounts=amounts), "default")["spec"]["spec"]["devices"]
    (asked,) = devices["requests"]
    assert ("config" in devices) == bool(more)
    result = {"request": "gpu", "driver": "gemlet.dev", "pool": "n1", "device": "gpu-0"}
    allocation = {"results": [result | {"consumedCapacity": asked["exactly"]["capacity"]["requests"]}]}
    claim = {
        "metadata": {"namespace": "default", "name": "c", "uid": "u"},
        "status": {"allocation": {"devices": allocation | {"config": devices.get("config", [])}}},
    }
    share = read_claim(claim, uid="u", pool="n1", gpus={gpu.device: gpu for gpu in fakes.GPUS})
    assert share.granted == amounts


def test_a_container_is_named_where_there_are_several():
    seen = pod(SHARE | {"gemlet.dev/container": "c1"}, {}, {})
    assert [operation["path"] for operation in patch(seen, SLOTS)] == ["/spec/containers/1/resources"]
    for asked, text in (
        (SHARE, "is missing, with 2"),
        (SHARE | {"gemlet.dev/container": "x"}, "names container x, which the pod does not have"),
    ):
        with pytest.raises(BadRequest, match=text):
            patch(pod(asked, {}, {}), SLOTS)


BOTH = {
    "c0.gemlet.dev/memory": "16Gi",
    "c0.gemlet.dev/compute": "25",
    "c1.gemlet.dev/memory": "8Gi",
    "c1.gemlet.dev/compute": "10",
}


def test_each_container_has_a_claim_of_its_own():
    seen = pod(BOTH, {}, {"resources": {"claims": [{"name": "other"}]}}, {}, resourceClaims=[{"name": "other"}])
    made = apply(seen, patch(seen, DRA))["spec"]
    first, second = asks(seen).values()
    assert made["resourceClaims"] == [
        {"name": "other"},
        {"name": "gemlet-c0", "resourceClaimTemplateName": template_name(first)},
        {"name": "gemlet-c1", "resourceClaimTemplateName": template_name(second)},
    ]
    used = [[claim["name"] for claim in c.get("resources", {}).get("claims", [])] for c in made["containers"]]
    assert used == [["gemlet-c0"], ["other", "gemlet-c1"], []]
    again = {"metadata": seen["metadata"], "spec": made}
    assert patch(again, DRA) == []


def test_each_container_has_a_slot_of_its_own():
    seen = pod(BOTH, {}, {}, {})
    made = apply(seen, patch(seen, SLOTS))["spec"]["containers"]
    assert [c.get("resources", {}).get("limits") for c in made] == [{"gemlet.dev/share": "1"}] * 2 + [None]


def test_the_pods_annotations_are_for_every_container_that_has_its_own():
    asked = asks(pod(BOTH | {"gemlet.dev/priority": "latency", "gemlet.dev/compute": "50"}, {}, {}))
    assert [(ask.amounts.compute, str(ask.amounts.priority)) for ask in asked.values()] == [
        (25, "latency"),
        (10, "latency"),
    ]


def test_a_claim_has_a_valid_name_whatever_the_container_is_called():
    long = "c" * 63
    amounts = {"memory": "1Gi", "compute": "5"}
    asked = {f"{name}.gemlet.dev/{what}": value for name in (long, "d") for what, value in amounts.items()}
    seen = pod(asked, {"name": long}, {"name": "d"})
    names = [claim["name"] for claim in apply(seen, patch(seen, DRA))["spec"]["resourceClaims"]]
    assert len(names[0]) <= 63
    assert names[1] == "gemlet-d"


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"c2.gemlet.dev/memory": "1Gi"}, "is for container c2, which the pod does not have; known here: c0, c1"),
        ({"c0.gemlet.dev/memory": "1Gi"}, r"gemlet.dev/compute\]: is missing"),
        ({"c0.gemlet.dev/colour": "red"}, "is not an annotation of gemlet"),
        ({"c0.gemlet.dev/compute-limit": "50"}, "asks for no share"),
        (SHARE | {"gemlet.dev/container": "c0", "gemlet.dev/gpus": "0"}, "0 is not a number of GPUs"),
        (SHARE | {"gemlet.dev/container": "c0", "gemlet.dev/gpus": "99"}, "expected 1 to 32"),
        (SHARE | {"gemlet.dev/container": "c0", "gemlet.dev/together": "rack"}, "one of nvlink, pcie, numa"),
        (SHARE | {"gemlet.dev/container": "c0", "gemlet.dev/gpus": "2"}, "offer the cluster's GPUs by claims"),
    ],
)
def test_what_a_container_cannot_ask_for_is_refused(annotations, text):
    with pytest.raises(BadRequest, match=text):
        patch(pod(annotations, {}, {}), SLOTS)


def test_several_gpus_are_distinct_and_together_where_that_is_asked_for():
    (ask,) = asks(pod(SHARE | {"gemlet.dev/gpus": "2", "gemlet.dev/together": "nvlink"})).values()
    devices = template(ask, "default")["spec"]["spec"]["devices"]
    assert devices["requests"][0]["exactly"]["count"] == 2
    assert devices["constraints"] == [
        {"requests": ["gpu"], "distinctAttribute": "gemlet.dev/uuid"},
        {"requests": ["gpu"], "matchAttribute": "gemlet.dev/nvlink"},
    ]
    plain = template(Ask(amounts=ask.amounts), "default")["spec"]["spec"]["devices"]
    assert "constraints" not in plain


def mounted(path, **volume):
    return {"volumeMounts": [{"name": "v", "mountPath": path}]}, {"volumes": [{"name": "v"} | volume]}


@pytest.mark.parametrize(
    ("container", "spec", "text"),
    [
        ({"env": [{"name": "LD_PRELOAD", "value": "x.so"}]}, {}, r"env\[LD_PRELOAD\].*remove it"),
        ({"env": [{"name": "LD_AUDIT", "value": "x.so"}]}, {}, r"env\[LD_AUDIT\].*remove it"),
        ({"env": [{"name": "GEMLET_STRICT", "value": "0"}]}, {}, r"env\[GEMLET_STRICT\]"),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {}, r"env\[NVIDIA_VISIBLE_DEVICES\]"),
        ({"securityContext": {"privileged": True}}, {}, "securityContext.privileged"),
        *[
            ({"securityContext": {"capabilities": {"add": ["IPC_LOCK", name]}}}, spec, f"add: {name} .* the host")
            for name, spec in (
                ("SYS_ADMIN", {}),
                ("CAP_SYS_ADMIN", {}),
                ("cap_sys_admin", {}),
                ("ALL", {}),
                ("DAC_READ_SEARCH", {}),
                ("SYS_MODULE", {}),
                ("SYS_BOOT", {}),  # kexec_load
                ("SYS_RAWIO", {}),
                ("LINUX_IMMUTABLE", {}),
                ("BPF", {}),
                ("PERFMON", {}),  # perf_event_open of a processor: the stacks of whatever runs there
                ("SYSLOG", {}),
                ("SYS_TIME", {}),
                ("NET_ADMIN", {"hostNetwork": True}),  # the node's firewall
            )
        ],
        ({}, {"hostUsers": False}, r"spec\.hostUsers: .* mode: dra"),
        ({}, {"hostPID": True}, r"spec\.hostPID: .* sockets of their shares .* remove it"),
        *[
            ({"env": [{"name": "GLIBC_TUNABLES"} | value]}, {}, r"env\[GLIBC_TUNABLES\].* leave enable_secure out")
            for value in (
                {"value": "glibc.malloc.check=1:glibc.rtld.enable_secure=1"},
                {"value": "$(FROM_ELSEWHERE)"},
                {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            )
        ],
        (*mounted("/opt/gemlet", emptyDir={}), r"volumeMounts\[/opt/gemlet\].*elsewhere"),
        (*mounted("/opt", emptyDir={}), "elsewhere"),
        (
            {"volumeDevices": [{"name": "v", "devicePath": "/run/gemlet/gemlet.sock"}]},
            {"volumes": [{"name": "v"}]},
            r"volumeDevices\[/run/gemlet/gemlet.sock\].*elsewhere",
        ),
        (*mounted("/run/gemlet/x", emptyDir={}), "elsewhere"),
        *[  # the kubelet mounts a file there: of no bytes, so that no hook is found
            ({"terminationMessagePath": path}, {}, rf"terminationMessagePath\[{path}\].*{text}")
            for path, text in (
                ("/opt/gemlet/libgemhook.so.1", "elsewhere"),
                ("/opt/./gemlet/libgemhook.so.1.share", "elsewhere"),
                ("/etc/ld.so.preload", "elsewhere"),
                ("/proc/self/root/opt/gemlet/libgemhook.so.1", "outside /proc"),
            )
        ],
        *[
            (*mounted(path, emptyDir={}), r"outside /proc, without \.\.")
            for path in (
                "/proc/self/root/opt/gemlet",  # runc and containerd follow it
                "//proc/1/cwd/run/gemlet",
                "/proc",
                "/var/run/../opt/gemlet",  # /var/run is a link to /run
                "/data/../data",
            )
        ],
        (
            {"volumeDevices": [{"name": "v", "devicePath": "/proc/thread-self/root/run/gemlet/gemlet.sock"}]},
            {"volumes": [{"name": "v"}]},
            "outside /proc",
        ),
        (*mounted("/etc/ld.so.preload", emptyDir={}), "elsewhere"),
        (*mounted("/var/run/nvidia-container-devices/all", emptyDir={}), "chooses GPUs"),
        (*mounted("/run/nvidia-container-devices", emptyDir={}), "chooses GPUs"),
        *[
            (*mounted(path, emptyDir={}), "elsewhere")
            for path in ("/run//gemlet", "/run/./gemlet", "//run/gemlet/", "/etc/./ld.so.preload", "/var/run/gemlet")
        ],
        *[
            (*mounted("/d", hostPath={"path": path}), "host's ")
            for path in (
                "/",
                "",
                "/dev/nvidia1",
                "/var/run/docker.sock",
                "/mnt/stateful_partition/var/lib/gemlet/shares",  # Container-Optimized OS, of which /var is a part
                "/opt/aws/bin",
                "/datasets",  # below a directory that may be mounted, and others like it
                "/data/a",
                "/data/.",
                "/data/a/..",
                "//data",
                "data",
            )
        ],
    ],
)
@pytest.mark.parametrize("way", ["annotations", "slot"])
def test_what_would_escape_the_hook_is_refused(container, spec, text, way):
    seen = pod(SHARE, container, **spec) if way == "annotations" else pod({}, container | SLOT, **spec)
    with pytest.raises(BadRequest, match=text):
        patch(seen, dataclasses.replace(SLOTS, host_paths=("/data",)))


SLOT = {"resources": {"limits": {"gemlet.dev/share": "1"}}}


@pytest.mark.parametrize("read_only", [True, False])
def test_no_path_of_a_node_is_mounted_but_those_that_an_administrator_names(read_only):
    """Every distribution has places of its own for its state and what it runs as root, and some have /var twice. Below
    a directory that pods write in, a path may be a link to anywhere."""
    container, spec = mounted("/d", hostPath={"path": "/data"})
    container["volumeMounts"][0] |= {"readOnly": read_only, "subPath": "a/b"}
    claimed = pod({}, container | {"resources": {"claims": [{"name": "gpu"}]}}, **spec)
    claimed["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "u1"}]
    for paths in (("/data",), ("/models", "/data")):
        for path in ("/data", "/data/"):
            spec["volumes"][0]["hostPath"]["path"] = path
            assert patch(pod(SHARE, container, **spec), dataclasses.replace(SLOTS, host_paths=paths))
            check_pod(claimed, {"u1"}, paths)
    for paths in ((), ("/models",), ("/data/a",), ("/",)):
        with pytest.raises(BadRequest, match=r"host's /data.* hostPaths name \(.*\), with subPath"):
            patch(pod(SHARE, container, **spec), dataclasses.replace(SLOTS, host_paths=paths))
        with pytest.raises(BadRequest, match="host's /data"):
            check_pod(claimed, {"u1"}, paths)


def test_paths_of_nodes_that_may_be_mounted_hold_nothing_of_gemlets_and_none_of_each_other():
    assert check_host_paths(["/data", "/mnt/a/", "/mnt/ab"], ["/var/lib/gemlet"]) == ("/data", "/mnt/a", "/mnt/ab")
    for paths in (
        ["/var"],
        ["/var/lib/gemlet/shares"],
        ["/var/run"],
        ["/dev/shm"],
        ["/a", "/a/b"],
        ["/a/b", "/a"],
    ):
        with pytest.raises(GemletError, match="pods must not mount"):
            check_host_paths(paths, ["/var/lib/gemlet"])
    for path in ("", "/", "data", "/data/../dev", "/data//a", "/data/.", "//data"):
        with pytest.raises(GemletError, match="cannot be one"):
            check_host_paths([path])


def test_among_the_processes_of_a_simulated_node_a_capability_is_more_than_elsewhere():
    seen = pod(SHARE, {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}, hostPID=True)
    with pytest.raises(BadRequest, match=r"add: SYS_PTRACE .* the host"):
        patch(seen, SIMULATED)
    del seen["spec"]["hostPID"]
    assert patch(seen, SIMULATED)


def test_a_pod_without_a_share_may_have_the_host_s_processes():
    assert patch(pod({}, hostPID=True), SLOTS) == []


def test_users_of_its_own_keep_no_pod_from_a_claim():
    """Its CDI file says that the hook is to be executed; the kubelet cannot say it."""
    assert patch(pod(SHARE, hostUsers=False), DRA)
    assert patch(pod({}, hostUsers=False), SLOTS) == []
    assert patch(pod(SHARE, hostUsers=True), SLOTS)


@pytest.mark.parametrize("name", ["io.kubernetes.cri-o.userns-mode", "userns-mode.crio.io"])
def test_a_user_namespace_by_annotation_is_one(name):
    """Nodes whose CRI-O is configured to see it make one as for hostUsers."""
    asked = SHARE | {name: "auto"}
    with pytest.raises(BadRequest, match=rf"annotations\[{re.escape(name)}\]: .* mode: dra"):
        patch(pod(asked), SLOTS)
    assert patch(pod(asked), DRA)


def test_ordinary_variables_are_welcome():
    """They bring code of the pod's own, or choose among what its share has: no more than the program can do itself."""
    given = {
        "LD_LIBRARY_PATH": "/x",
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
    }
    patch(pod(SHARE, {"env": [{"name": name, "value": value} for name, value in given.items()]}), SLOTS)


def test_ordinary_mounts_and_capabilities_are_welcome():
    for at in ("/dev/termination-log", "/tmp/..message", "/process"):
        container, spec = mounted(at, emptyDir={})
        patch(pod(SHARE, container | {"terminationMessagePath": at}, **spec), SLOTS)
    for named, network in (
        (["IPC_LOCK", "NET_RAW", "SYS_PTRACE", "SYS_NICE"], True),
        (["MKNOD", "DAC_OVERRIDE", "NET_ADMIN"], False),
        (None, True),
    ):
        security = {"securityContext": {"capabilities": {"add": named, "drop": ["ALL"]}}}
        patch(pod(SHARE, security, hostIPC=True, hostNetwork=network, shareProcessNamespace=True), SLOTS)
    patch(pod(SHARE, {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}, hostPID=True), SIMULATED)


PRELOAD = {"env": [{"name": "LD_PRELOAD", "value": "x.so"}]}


def test_every_container_with_a_share_is_checked_not_only_the_one_that_annotations_name():
    asked = SHARE | {"gemlet.dev/container": "c0"}
    with pytest.raises(BadRequest, match=r"containers\[1\].env\[LD_PRELOAD\]"):
        patch(pod(asked, {}, SLOT | PRELOAD), SLOTS)
    uses = {"resources": {"claims": [{"name": "gemlet"}]}}
    for face, more, where in (
        (DRA, {}, "containers"),
        (DRA, {"initContainers": [{"name": "i"} | uses | PRELOAD]}, "initContainers"),
    ):
        seen = pod(asked, {}, **more) if more else pod(asked, {}, uses | PRELOAD)
        with pytest.raises(BadRequest, match=rf"{where}\[[01]\].env\[LD_PRELOAD\]"):
            patch(seen, face)
    assert patch(pod(asked, {}, PRELOAD), SLOTS)  # which has no GPU


@pytest.mark.parametrize("cluster", [SLOTS, UNITS, DRA])
def test_the_container_is_checked_as_it_will_be(cluster):
    with pytest.raises(BadRequest, match="NVIDIA"):
        patch(pod(SHARE, {"resources": {"limits": {"nvidia.com/gpu": "1"}}}), cluster)


def test_annotations_and_other_resources_of_gemlet_are_not_both_given():
    with pytest.raises(BadRequest, match="one of the two"):
        patch(pod(SHARE, resources(compute_units="10", memory_units="1")), SLOTS)
    with pytest.raises(BadRequest, match="one of the two"):
        patch(pod(SHARE, resources(share="1")), UNITS)


def resources(**given):
    return {"resources": {"limits": {f"gemlet.dev/{name.replace('_', '-')}": value for name, value in given.items()}}}


@pytest.mark.parametrize(
    ("container", "text"),
    [
        (resources(share="2"), "exactly one slot, not 2"),
        (resources(share="0"), "0 is not a valid share"),
        (resources(compute_units="0", memory_units="1"), "0 is not a valid share"),
        (resources(compute_units="1.5", memory_units="1"), "1.5 is not a whole number"),
        (resources(compute_units="1", memory_units=2.5), "2.5 is not a whole number"),
        (resources(compute_units="101", memory_units="1"), "more than one GPU"),
        (resources(compute_units="10"), r"memory-units\]: is missing"),
        (resources(memory_units="10"), r"compute-units\]: is missing"),
        (resources(share="1", compute_units="1", memory_units="1"), "one of the two"),
        ({"resources": {"limits": {"gemlet.dev/share": "1", "nvidia.com/gpu": "1"}}}, "NVIDIA"),
    ],
)
def test_bad_resources_name_the_field_and_the_hint(container, text):
    with pytest.raises(BadRequest, match=text) as caught:
        patch(pod({}, container), SLOTS)
    assert caught.value.field.startswith("spec.containers[0].resources.limits")


@pytest.mark.parametrize(
    ("annotations", "cluster", "text"),
    [
        (SHARE | {"gemlet.dev/compute": "26"}, SLOTS, "more than the 25 of a slot"),
        (SHARE | {"gemlet.dev/memory": "21Gi"}, SLOTS, "20Gi or less"),
        (SHARE | {"gemlet.dev/memory": "81Gi"}, DRA, "80Gi or less"),
        ({"gemlet.dev/compute-limit": "50"}, SLOTS, "asks for no share"),
        ({"gemlet.dev/colour": "red"}, SLOTS, "is not an annotation of gemlet"),
    ],
)
def test_bad_amounts_name_the_field_and_the_hint(annotations, cluster, text):
    with pytest.raises(BadRequest, match=text):
        patch(pod(annotations), cluster)


@pytest.mark.parametrize("cluster", [SLOTS, UNITS, DRA])
def test_a_pod_without_containers_is_told_so(cluster):
    """The apiserver asks before it looks for any: what is not understood would be an error of the webhook."""
    with pytest.raises(BadRequest, match=r"^spec\.containers: is empty; "):
        patch(pod(SHARE) | {"spec": {"containers": []}}, cluster)


def test_an_init_container_has_no_share_of_its_own():
    seen = pod({}, initContainers=[{"name": "i"} | SLOT])
    with pytest.raises(BadRequest, match=r"initContainers\[0\].*in a container"):
        patch(seen, SLOTS)


@pytest.mark.parametrize(
    "name",
    [
        "cdi.k8s.io/mine",
        "cdi.k8s.io/",
        "nvidia.cdi.k8s.io/container.c0",  # NVIDIA's plugin of container runtimes
        "cdi-devices.nri.io/container.c0",
        "cdi-devices.noderesource.dev",
        "devices.noderesource.dev/pod",
        "devices.gke.io/container.c0",  # GKE's plugin of containerd
        "io.kubernetes.cri-o.Devices",
        "devices.crio.io",
    ],
)
@pytest.mark.parametrize("face", [SLOTS, UNITS, DRA])
def test_annotations_that_choose_devices_are_refused(name, face):
    with pytest.raises(BadRequest, match="chooses devices"):
        patch(pod(SHARE | {name: "nvidia.com/gpu=all"}), face)
    assert patch(pod({name: "nvidia.com/gpu=all"}), face) == [], "a pod that asks for no share is not touched"
    assert patch(pod(SHARE | {"henri.io/x": "1"}), face)
