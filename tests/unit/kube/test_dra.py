"""The DRA driver against a kubelet that is played by the test: the sockets, services and messages of the real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket

import grpc
import pytest

from gemlet.kube import cdi, services
from gemlet.kube.api_server import ApiError
from gemlet.kube.device_plugin import Gpus
from gemlet.kube.dra import DraDriver, claim_path
from gemlet.kube.kubelet_socket import identity
from gemlet.kube.plugin_socket import keep_served
from gemlet.kube.protocol import dra_pb2 as messages
from gemlet.kube.protocol import drahealth_pb2 as health
from gemlet.kube.protocol import registration_pb2 as registration
from tests.unit.kube import fakes, grpc_peer


def allocated(uid, *devices, name=None, pods=("p",), memory="16Gi", compute="25"):
    results = [
        {
            "request": "gpu",
            "driver": "gemlet.dev",
            "pool": "n1",
            "device": device,
            "shareID": f"{uid}-share",
            "consumedCapacity": {"memory": memory, "compute": compute},
        }
        for device in devices or ("gpu-0",)
    ]
    return {
        "metadata": {"namespace": "default", "name": name or uid, "uid": uid},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }


def named(pod, name):
    return pod | {"metadata": pod["metadata"] | {"name": name, "uid": name}}


def pod(*claims, uid="p"):
    names = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    meta = {"namespace": "default", "name": "p", "uid": uid}
    spec = {"resourceClaims": names, "containers": [{"name": "c", "resources": {"claims": names}}]}
    return {"metadata": meta, "spec": spec}


class Setup:
    def __init__(self, node):
        self.node = node
        self.root = node.path / "kubelet"
        self.gpus = Gpus()
        self.api = fakes.FakeApi()
        self.looked, self.unseen = [], None

    async def look_again(self, share, reserved):
        self.looked.append((share.claim, [pod.uid for pod in reserved], set(self.node.book.shares)))
        if self.unseen is not None:
            raise self.unseen

    def put(self, claim, *pods):
        self.api.objects[claim_path("default", claim["metadata"]["name"])] = claim
        for entry in claim["status"].get("reservedFor", []):
            path = f"/api/v1/namespaces/default/pods/{entry['name']}"
            self.api.objects.setdefault(path, named(pod(claim["metadata"]["name"]), entry["name"]))

    @contextlib.asynccontextmanager
    async def running(self):
        await self.gpus.set(fakes.GPUS)
        driver = DraDriver(self.node.book, self.gpus, self.api, pool="n1", look_again=self.look_again)
        task = asyncio.create_task(keep_served(driver, self.root, look=0.02))
        try:
            yield await Kubelet.discover(self.root)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Kubelet:
    """What the kubelet does: finds a socket in its registry, asks who it is, and calls the service it names."""

    def __init__(self, info, version):
        self.info = info
        self._channel = grpc.aio.insecure_channel(f"unix:{info.endpoint}")
        self._service = services.dra_service(version)

    @classmethod
    async def discover(cls, root, version="v1"):
        registry = root / "plugins_registry" / "gemlet.dev-reg.sock"
        while not registry.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        async with grpc.aio.insecure_channel(f"unix:{registry}") as channel:
            name = "pluginregistration.Registration"
            info = await grpc_peer.method(channel, name, "GetInfo")(registration.InfoRequest(), wait_for_ready=True)
            notify = grpc_peer.method(channel, name, "NotifyRegistrationStatus")
            await notify(registration.RegistrationStatus(plugin_registered=True))
        return cls(info, version)

    async def prepare(self, *claims):
        asked = [messages.Claim(namespace="default", uid=uid, name=name) for uid, name in claims]
        call = grpc_peer.method(self._channel, self._service, "NodePrepareResources")
        return (await call(messages.NodePrepareResourcesRequest(claims=asked))).claims

    async def unprepare(self, *claims):
        asked = [messages.Claim(namespace="default", uid=uid, name=name) for uid, name in claims]
        call = grpc_peer.method(self._channel, self._service, "NodeUnprepareResources")
        return (await call(messages.NodeUnprepareResourcesRequest(claims=asked))).claims

    def health(self):
        return grpc_peer.method(self._channel, "v1beta1.DRAResourceHealth", "NodeWatchResources")(
            health.NodeWatchResourcesRequest()
        )

    async def close(self):
        await self._channel.close()


@pytest.fixture
def setup(node):
    return Setup(node)


def scenario(steps):
    """A test whose body gets the setup and a kubelet."""

    def test(setup, run):
        async def whole():
            async with setup.running() as kubelet:
                try:
                    await steps(setup, kubelet)
                finally:
                    await kubelet.close()

        run(whole())

    test.__doc__ = steps.__doc__
    return test


@scenario
async def test_registration(setup, kubelet):
    assert (kubelet.info.type, kubelet.info.name) == ("DRAPlugin", "gemlet.dev")
    assert kubelet.info.supported_versions[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert "v1beta1.DRAResourceHealth" in kubelet.info.supported_versions


@scenario
async def test_a_claim_from_prepare_to_unprepare(setup, kubelet):
    setup.put(allocated("u1"))
    first = (await kubelet.prepare(("u1", "u1")))["u1"]
    assert first.error == ""
    (device,) = first.devices
    assert (device.pool_name, device.device_name, list(device.request_names)) == ("n1", "gpu-0", ["gpu"])
    assert list(device.cdi_device_ids) == ["k8s.gemlet.dev/share=claim-u1-gpu-0"]
    content = json.loads(cdi.path_of(setup.node.cdi, "claim-u1").read_text())
    assert f"NVIDIA_VISIBLE_DEVICES={fakes.FIRST}" in content["containerEdits"]["env"]
    (check,) = content["containerEdits"]["hooks"]
    assert check == {
        "hookName": "createRuntime",
        "path": "/var/lib/gemlet/hook/1/gemlet-start-check",
        "args": ["gemlet-start-check", f"{setup.node.permits}/claim-u1"],
    }
    assert setup.node.daemon.opened["default/u1"][0] == fakes.amounts(16, 25)
    assert (await kubelet.prepare(("u1", "u1")))["u1"] == first, "preparing twice is preparing once"
    for _ in range(2):
        assert (await kubelet.unprepare(("u1", "u1")))["u1"].error == ""
    assert setup.node.leftovers() == []


@scenario
async def test_a_request_with_alternatives_is_called_as_containers_call_it(setup, kubelet):
    """The scheduler says gpu/large of what a container can only call gpu; the kubelet compares the two as they are, and
    starts a container of which it finds nothing without the share."""
    claim = allocated("u1")
    claim["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/large"
    setup.put(claim)
    for _ in range(2):  # also of one that is open already
        (device,) = (await kubelet.prepare(("u1", "u1")))["u1"].devices
        assert list(device.request_names) == ["gpu"]


@scenario
async def test_a_share_knows_the_container_that_uses_it(setup, kubelet):
    """By which annotations of one container are found, and metrics are labelled."""
    both = pod("u1")
    both["spec"]["containers"].insert(0, {"name": "sidecar"})
    setup.api.objects["/api/v1/namespaces/default/pods/p"] = both
    setup.put(allocated("u1"))
    await kubelet.prepare(("u1", "u1"))
    assert setup.node.book.shares["claim-u1"].pod.container == "c"


@scenario
async def test_an_older_kubelet_is_served_too(setup, kubelet):
    setup.put(allocated("u1"))
    older = await Kubelet.discover(setup.root, version="v1beta1")
    assert (await older.prepare(("u1", "u1")))["u1"].error == ""
    await older.close()


@scenario
async def test_every_claim_is_answered_and_one_does_not_fail_another(setup, kubelet):
    setup.put(allocated("u1"))
    setup.put(allocated("u3", "gpu-1", name="u2", pods=("q",)))
    answers = await kubelet.prepare(("u1", "u1"), ("u2", "u2"), ("u4", "u4"))
    assert set(answers) == {"u1", "u2", "u4"}
    assert answers["u1"].error == ""
    assert "metadata.uid: is u3, not u2" in answers["u2"].error
    assert "404" in answers["u4"].error
    assert set(await kubelet.unprepare(("u1", "u1"), ("u9", "u9"))) == {"u1", "u9"}


@scenario
async def test_two_claims_share_a_gpu_and_a_third_does_not_fit(setup, kubelet):
    for uid, compute in (("u1", "25"), ("u2", "50"), ("u3", "50")):
        setup.put(allocated(uid, compute=compute, pods=(uid,)))
    answers = await kubelet.prepare(("u1", "u1"), ("u2", "u2"), ("u3", "u3"))
    assert [answers[uid].error == "" for uid in ("u1", "u2", "u3")] == [True, True, False]
    assert "75 of 100 is taken" in answers["u3"].error
    assert {s.amounts.compute for s in setup.node.book.shares.values()} == {25, 50}
    await kubelet.unprepare(("u2", "u2"))
    assert (await kubelet.prepare(("u3", "u3")))["u3"].error == "", "the kubelet's next try"


@scenario
async def test_a_late_prepare_does_not_bring_a_claim_back(setup, kubelet):
    setup.put(allocated("u1"))
    await kubelet.prepare(("u1", "u1"))
    del setup.api.objects[claim_path("default", "u1")]
    await kubelet.unprepare(("u1", "u1"))
    assert (await kubelet.prepare(("u1", "u1")))["u1"].error != ""
    assert setup.node.leftovers() == []


class Slow:
    """An api whose answer about one pod takes until `go` is set."""

    def __init__(self, api, path):
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self._path, self._get = path, api.get

    async def get(self, path, **query):
        if path == self._path:
            self.asked.set()
            await self.go.wait()
        return await self._get(path, **query)


@scenario
async def test_a_late_prepare_closes_nothing_of_the_next_claim_of_its_name(setup, kubelet):
    """The kubelet took that one for prepared, and no container of its pod started any more."""
    setup.put(allocated("u1", name="c"))
    slow = Slow(setup.api, "/api/v1/namespaces/default/pods/p")
    setup.api.get = slow.get
    late = asyncio.create_task(kubelet.prepare(("u1", "c")))
    await slow.asked.wait()
    setup.put(allocated("u2", name="c", pods=("q",)))
    assert (await kubelet.prepare(("u2", "c")))["u2"].error == ""
    slow.go.set()
    assert "opened meanwhile" in (await late)["u1"].error
    assert cdi.share_ids(setup.node.cdi) == setup.node.book.shares.keys() == {"claim-u2"}
    assert (await kubelet.prepare(("u2", "c")))["u2"].error == ""


@scenario
async def test_a_late_prepare_does_not_undo_what_its_claim_was_allocated_anew(setup, kubelet):
    setup.put(allocated("u1", compute="50"))
    slow = Slow(setup.api, "/api/v1/namespaces/default/pods/p")
    setup.api.get = slow.get
    late = asyncio.create_task(kubelet.prepare(("u1", "u1")))
    await slow.asked.wait()
    setup.put(allocated("u1", compute="10", pods=("q",)))
    assert (await kubelet.prepare(("u1", "u1")))["u1"].error == ""
    slow.go.set()
    assert "opened meanwhile" in (await late)["u1"].error
    assert setup.node.daemon.opened["default/u1"][0].compute == 10
    setup.put(allocated("u1", compute="20", pods=("q",)))
    assert (await kubelet.prepare(("u1", "u1")))["u1"].error == "", "what was there before is closed"
    assert setup.node.daemon.opened["default/u1"][0].compute == 20


@scenario
async def test_one_container_with_two_shares_is_refused(setup, kubelet):
    setup.put(allocated("u1"))
    setup.put(allocated("u2", "gpu-1"))
    setup.api.objects["/api/v1/namespaces/default/pods/p"] = pod("u1", "u2")
    answers = await kubelet.prepare(("u1", "u1"), ("u2", "u2"))
    assert "both shares of GPUs" in answers["u2"].error


@scenario
async def test_a_container_that_would_leave_its_share_is_refused(setup, kubelet):
    setup.put(allocated("u1"))
    escaping = pod("u1")
    escaping["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "x.so"}]
    setup.api.objects["/api/v1/namespaces/default/pods/p"] = escaping
    answers = await kubelet.prepare(("u1", "u1"))
    assert "spec.containers[0].env[LD_PRELOAD]" in answers["u1"].error
    assert not cdi.share_ids(setup.node.cdi)


@scenario
async def test_a_claim_is_prepared_for_those_of_its_pods_that_stay_in_their_share(setup, kubelet):
    """One that would leave it kept all others from starting, too. By whose annotations the share is changed, may not be
    up to that one."""
    setup.put(allocated("u1", pods=("hostile", "gone", "good")))
    hostile = named(pod("u1"), "hostile")
    hostile["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "x.so"}]
    setup.api.objects["/api/v1/namespaces/default/pods/hostile"] = hostile
    del setup.api.objects["/api/v1/namespaces/default/pods/gone"]
    assert (await kubelet.prepare(("u1", "u1")))["u1"].error == ""
    share = setup.node.book.shares["claim-u1"].pod
    assert (share.name, share.container) == ("good", "c")


@scenario
async def test_a_claim_is_not_prepared_for_a_pod_by_what_another_of_its_name_says(setup, kubelet):
    """The one before, whose specification nobody may ask for any more, would have started in the share."""
    setup.put(allocated("u1"))
    setup.api.objects["/api/v1/namespaces/default/pods/p"] = pod("u1", uid="another")
    assert "is another now" in (await kubelet.prepare(("u1", "u1")))["u1"].error
    assert setup.node.leftovers() == []


@scenario
async def test_pods_that_are_here_already_are_looked_at_before_the_kubelet_hears(setup, kubelet):
    setup.put(allocated("u1"))
    setup.unseen = ApiError("no answer", status=0)
    assert "no answer" in (await kubelet.prepare(("u1", "u1")))["u1"].error
    setup.unseen = None
    assert not (await kubelet.prepare(("u1", "u1")))["u1"].error
    assert setup.looked == 2 * [(("default", "u1"), ["p"], {"claim-u1"})]


@scenario
async def test_two_gpus_in_one_claim_have_names_of_their_own(setup, kubelet):
    setup.put(allocated("u1", "gpu-0", "gpu-1"))
    devices = (await kubelet.prepare(("u1", "u1")))["u1"].devices
    ids = [name for device in devices for name in device.cdi_device_ids]
    assert len(ids) == len(set(ids)) == 2
    assert setup.node.daemon.opened["default/u1"][2] is None, "the group is on no single device"


@scenario
async def test_an_unreachable_daemon_is_an_error_of_the_claim(setup, kubelet):
    setup.put(allocated("u1"))
    setup.node.daemon.down = True
    assert "no daemon" in (await kubelet.prepare(("u1", "u1")))["u1"].error
    assert not cdi.share_ids(setup.node.cdi)


@scenario
async def test_health_names_the_gpu_that_is_gone(setup, kubelet):
    watch = kubelet.health()
    first = await watch.read()
    assert [d.health for d in first.devices] == [health.HealthStatus.HEALTHY] * 2
    await setup.gpus.set(fakes.GPUS[:1])
    second = await watch.read()
    assert [d.health for d in second.devices] == [health.HealthStatus.HEALTHY, health.HealthStatus.UNHEALTHY]
    assert (second.devices[1].device.pool_name, second.devices[1].device.device_name) == ("n1", "gpu-1")
    watch.cancel()


@scenario
async def test_sockets_that_vanish_are_made_again(setup, kubelet):
    setup.put(allocated("u1"))
    shutil.rmtree(setup.root / "plugins_registry")
    again = await Kubelet.discover(setup.root)
    assert (await again.prepare(("u1", "u1")))["u1"].error == ""
    await again.close()


@scenario
async def test_a_socket_in_the_place_of_ours_is_replaced(setup, kubelet):
    setup.put(allocated("u1"))
    place = setup.root / "plugins" / "gemlet.dev" / "dra.sock"
    place.unlink()
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(place))
        theirs = identity(place)
        while identity(place) in (theirs, None):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    again = await Kubelet.discover(setup.root)
    assert (await again.prepare(("u1", "u1")))["u1"].error == ""
    await again.close()


@scenario
async def test_a_hundred_claims_are_prepared(setup, kubelet):
    for number in range(100):
        setup.put(allocated(f"u{number}", f"gpu-{number % 2}", memory="512Mi", compute="1", pods=(f"p{number}",)))
        answer = (await kubelet.prepare((f"u{number}", f"u{number}")))[f"u{number}"]
        assert answer.error == ""
    await kubelet.unprepare(*((f"u{number}", f"u{number}") for number in range(100)))
    assert setup.node.leftovers() == []


def test_a_restart_after_a_reboot_writes_the_cdi_files_again(setup, run):
    """The kubelet does not ask again for pods that run: the checkpoint is all there is."""

    async def before():
        setup.put(allocated("u1"))
        async with setup.running() as kubelet:
            await kubelet.prepare(("u1", "u1"))
            await kubelet.close()

    async def after():
        await setup.node.book.restore()
        async with setup.running() as kubelet:
            assert cdi.share_ids(setup.node.cdi) == {"claim-u1"}
            assert (await kubelet.unprepare(("u1", "u1")))["u1"].error == ""
            await kubelet.close()

    run(before())
    shutil.rmtree(setup.node.cdi)
    setup.node.restart()
    run(after())
    assert setup.node.leftovers() == []


@scenario
async def test_an_odd_claim_fails_alone(setup, kubelet):
    """As one of an apiserver that names things otherwise: what nobody has thought of is its own trouble, too."""
    odd = allocated("odd")
    del odd["status"]["allocation"]["devices"]["results"][0]["device"]
    setup.put(odd)
    setup.put(allocated("u1"))
    answers = await kubelet.prepare(("odd", "odd"), ("u1", "u1"))
    assert "KeyError('device')" in answers["odd"].error
    assert answers["u1"].error == ""
    assert {share.claim_uid for share in setup.node.book.shares.values()} == {"u1"}
