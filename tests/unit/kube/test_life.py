"""What happens to shares while nobody calls: pods end, GPUs are lost; and how people are shown what there is."""

from __future__ import annotations

import asyncio

import msgspec

from gemlet.daemon.status import ClientStatus, GroupStatus, SwapStatus
from gemlet.kube import api_server, metrics, reaper
from gemlet.kube.api_server import ApiError
from gemlet.kube.device_plugin import Gpus
from gemlet.kube.dra import claim_path
from gemlet.kube.lost_gpus import LossTeller
from gemlet.kube.pod_events import PER_MINUTE, PodEvents
from gemlet.kube.share import Pod
from tests.unit.kube import fakes

NAMED = {"namespace": "default", "name": "p"}  # as the apiserver says of each pod


def allocated_claim(uid, compute="25"):
    """The claim of `fakes.claim_share`, used by the pod p."""
    result = {"driver": "gemlet.dev", "pool": "n1", "request": "gpu", "device": "gpu-0"}
    capacity = {"memory": "16Gi", "compute": compute}
    return {
        "metadata": {"namespace": "default", "name": uid, "uid": uid},
        "status": {
            "allocation": {"devices": {"results": [result | {"consumedCapacity": capacity}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        },
    }


class TestReaper:
    def test_a_share_goes_when_the_kubelet_knows_no_holder_twice(self, node, run):
        kubelet = fakes.FakeKubelet()
        looker = fakes.reaper(node.book, kubelet, fakes.FakeApi())
        run(node.book.open(fakes.slot_share()))
        kubelet.holders[fakes.SLOT, f"{fakes.FIRST}::0"] = Pod(namespace="default", name="p", container="c")
        for _ in range(3):
            assert run(looker.look()) == []
        kubelet.holders.clear()
        assert run(looker.look()) == [], "an answer may be a moment too early"
        assert run(looker.look()) == ["claim-s0"]
        assert node.leftovers() == []

    def test_a_kubelet_that_forgot_its_pods_costs_nobody_a_share(self, node, run):
        """One that starts without an apiserver knows of no pods, and their containers run on: an idle one lost its
        share for good."""
        api = fakes.FakeApi()
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        where = "/api/v1/namespaces/default/pods/p"
        share = fakes.slot_share()
        run(node.book.open(share))
        asked, api.get = api.get, fakes.no_answer
        for _ in range(4):
            assert run(looker.look()) == []
        api.get = asked
        for phase in ("Pending", "Running"):
            api.objects[where] = {"metadata": NAMED, "spec": {"nodeName": "n1"}, "status": {"phase": phase}}
            assert run(looker.look()) == []
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        for meta, pod in (
            ({}, {"spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}}),
            (going, {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}),
            ({}, {"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}),
            ({}, {"spec": {}}),
        ):
            api.objects[where] = {"metadata": NAMED | meta} | pod
            run(looker.look())
            assert node.book.shares == {}, pod
            run(node.book.open(share))
            run(looker.look())

    def test_a_kubelet_that_forgot_its_pods_costs_no_container_that_has_not_started_its_share(self, node, run):
        """Nobody has said yet whose it is. The container could never start, until somebody deleted its pod."""
        api, kubelet, where = fakes.FakeApi(), fakes.FakeKubelet(), "/api/v1/pods"
        looker = fakes.reaper(node.book, kubelet, api)
        share = msgspec.structs.replace(fakes.slot_share(), pod=Pod())
        run(node.book.open(share))
        kubelet.uids[fakes.SLOT, f"{fakes.FIRST}::0"] = "u"
        asked, api.get = api.get, fakes.no_answer
        for _ in range(4):
            assert run(looker.look()) == []
        api.get = asked
        pod = {"metadata": NAMED | {"uid": "u"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
        api.objects[where] = {"items": [{"metadata": NAMED | {"uid": "v"}}, pod]}
        assert run(looker.look()) == []
        for gone in ([], [pod | {"status": {"phase": "Failed"}}], [pod | {"metadata": NAMED | {"uid": "v"}}]):
            api.objects[where] = {"items": gone}
            run(looker.look())
            assert node.book.shares == {}, gone
            run(node.book.open(share))
            run(looker.look())

    def test_another_pod_of_the_name_keeps_no_share(self, node, run):
        share = fakes.slot_share()
        run(node.book.open(msgspec.structs.replace(share, pod=msgspec.structs.replace(share.pod, uid="u1"))))
        api = fakes.FakeApi()
        next_one = {"metadata": NAMED | {"uid": "u2"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
        api.objects["/api/v1/namespaces/default/pods/p"] = next_one
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        run(looker.look())
        assert run(looker.look()) == [share.id]

    def test_a_clock_that_is_set_back_keeps_no_share(self, node, run):
        share = msgspec.structs.replace(fakes.slot_share(), opened=reaper.time.time() + 3600)
        run(node.book.open(share))
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi())
        run(looker.look())
        assert run(looker.look()) == [share.id]

    def test_a_young_share_is_left_alone(self, node, run):
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi(), young=reaper.YOUNG_SECONDS)
        share = msgspec.structs.replace(fakes.slot_share(), opened=reaper.time.time())
        run(node.book.open(share))
        for _ in range(3):
            assert run(looker.look()) == []

    def test_a_claim_goes_when_it_is_gone_or_another_one(self, node, run):
        api = fakes.FakeApi()
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        run(node.book.open(fakes.claim_share("u1")))
        run(node.book.open(fakes.claim_share("u2")))
        api.objects[claim_path("default", "u1")] = allocated_claim("u1")
        api.objects[claim_path("default", "u2")] = allocated_claim("other")
        run(looker.look())
        assert run(looker.look()) == ["claim-u2"]
        api.objects.clear()
        run(looker.look())
        assert run(looker.look()) == ["claim-u1"]
        assert node.leftovers() == []

    def test_a_claim_that_is_allocated_anew_has_no_more_than_that(self, node, run):
        """A pod that is deleted by force, and another that uses its claim before the kubelet has ended the first: it
        starts in what was prepared, and others waited for what the scheduler had given them."""
        api = fakes.FollowedApi()
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        run(node.book.open(fakes.claim_share("u1", granted=fakes.amounts(16, 80))))
        claim = allocated_claim("u1", compute="80")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        api.objects[claim_path("default", "u1")] = claim
        api.objects["/api/v1/namespaces/default/pods/p"] = fakes.seen_pod()
        assert run(looker.look()) == []
        assert (node.daemon.opened["default/u1"][0].limit, api.created) == (80, [])
        result["consumedCapacity"]["compute"] = "10"
        for _ in range(2):
            assert run(looker.look()) == []
        assert node.daemon.opened["default/u1"][0] == fakes.amounts(16, 10)
        run(looker._events.make())
        ((_, event),) = api.created
        assert "allocated anew while it was in use, and has 10 % and 16Gi of" in event["message"]
        run(node.book.open(fakes.claim_share("u2", granted=fakes.amounts(16, 90))))
        result["device"] = "gpu-1"
        run(looker.look())
        assert node.daemon.opened["default/u1"][0].memory == 0
        assert node.restart().shares["claim-u1"].granted.compute == 0

    def test_a_claim_of_many_pods_does_not_keep_the_next_waiting(self, node, run):
        """An event was made of each of up to 256 pods, one after the other, before the next share was looked at."""

        class Silent(fakes.FollowedApi):
            async def create(self, path, body):
                await asyncio.Event().wait()

        api = Silent()
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        for uid in ("u1", "u2"):
            run(node.book.open(fakes.claim_share(uid, granted=fakes.amounts(16, 40))))
            claim = api.objects[claim_path("default", uid)] = allocated_claim(uid, compute="10")
            claim["status"]["reservedFor"] = [{"resource": "pods", "name": f"p{n}", "uid": f"u{n}"} for n in range(99)]
        run(looker.look())
        assert {node.daemon.opened[f"default/{uid}"][0].limit for uid in ("u1", "u2")} == {10}
        assert len(looker._events._waiting) == PER_MINUTE, "of a namespace"

    def test_a_claim_that_nobody_foresaw_costs_no_other_share_a_look(self, node, run, caplog):
        """The agent ended, and again after each start."""
        api = fakes.FakeApi()
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), api)
        run(node.book.open(fakes.claim_share("u1")))
        run(node.book.open(fakes.claim_share("u2")))
        api.objects[claim_path("default", "u1")] = {"metadata": {}}
        run(looker.look())
        assert run(looker.look()) == ["claim-u2"]
        assert "share=claim-u1" in caplog.text

    def test_an_apiserver_that_does_not_answer_costs_nobody_a_share(self, node, run):
        class Down:
            async def get(self, path, **query):
                raise ApiError("no answer", status=0)

        looker = fakes.reaper(node.book, fakes.FakeKubelet(), Down())
        run(node.book.open(fakes.claim_share("u1")))
        for _ in range(3):
            assert run(looker.look()) == []

    def test_an_apiserver_that_knows_no_claims_costs_nobody_a_share(self, node, run):
        """One that was brought back to a version without them said 404 of each, and idle pods lost theirs."""

        class Earlier:
            async def get(self, path, **query):
                raise api_server._refusal(404, b"404 page not found\n", f"GET {path}")

        looker = fakes.reaper(node.book, fakes.FakeKubelet(), Earlier())
        run(node.book.open(fakes.claim_share("u1")))
        for _ in range(3):
            assert run(looker.look()) == []

    def test_a_share_that_was_opened_while_its_claim_was_asked_for_stays(self, node, run):
        """It is prepared, and the kubelet would not have it prepared again."""
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi())

        class Answer(fakes.FakeApi):
            async def get(self, path, **query):
                await node.book.close("claim-u1")
                await node.book.open(fakes.claim_share("u1", opened=2.0))
                raise ApiError("not found", status=404)

        run(node.book.open(fakes.claim_share("u1", opened=1.0)))
        run(looker.look())
        looker._api = Answer()
        assert run(looker.look()) == []
        assert node.book.shares["claim-u1"].opened == 2.0
        looker._api = fakes.FakeApi()
        assert run(looker.look()) == ["claim-u1"]

    def test_a_share_in_use_is_tried_again(self, node, run, monkeypatch):
        monkeypatch.setattr("gemlet.kube.book.CLOSE_SECONDS", 0.05)
        looker = fakes.reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi())
        run(node.book.open(fakes.slot_share()))
        node.daemon.busy.add("default/s0")
        for _ in range(3):
            assert run(looker.look()) == []
        node.daemon.busy.clear()
        assert run(looker.look()) == ["claim-s0"]


class TestLossTeller:
    def test_the_pods_of_a_lost_gpu_are_told_once_each_time(self, node, run):
        api, gpus = fakes.FollowedApi(), Gpus()
        api.objects["/api/v1/namespaces/default/pods/p"] = fakes.seen_pod()

        async def turns():
            for _ in range(20):  # of the loop: nothing here waits for anything else
                await asyncio.sleep(0)
            return len(api.created)

        async def scenario():
            first, second = fakes.GPUS
            await node.book.open(fakes.claim_share("u1", (fakes.FIRST,), pod=Pod(namespace="default", name="p")))
            await node.book.open(fakes.claim_share("u2", (fakes.SECOND,), pod=Pod(namespace="default", name="q")))
            await node.book.open(fakes.claim_share("u3", (fakes.FIRST,), pod=Pod(namespace="default", name="gone")))
            await node.book.open(fakes.claim_share("u4", (fakes.FIRST,)))  # of nobody yet
            await gpus.set(fakes.GPUS)
            events = PodEvents(api)
            tasks = [asyncio.create_task(each.run()) for each in (events, LossTeller(events, node.book, gpus))]
            assert await turns() == 0
            await gpus.set([second])
            assert await turns() == 1
            await gpus.set([second, first])
            assert await turns() == 1
            await gpus.set([second])
            assert await turns() == 2
            for task in tasks:
                task.cancel()

        run(scenario())
        for path, event in api.created:
            assert path == "/api/v1/namespaces/default/events"
            assert (event["involvedObject"]["name"], event["reason"], event["type"]) == ("p", "GpuLost", "Warning")
            assert fakes.FIRST in event["message"]


def test_metrics_carry_the_names_of_kubernetes():
    share = fakes.slot_share()
    clients = (
        ClientStatus(
            pid=1,
            uid=0,
            command="c",
            state="runs",
            memory=5,
            unledgered=0,
            launches=1,
            contexts=1,
            seconds=1.0,
            swap=SwapStatus(resident=3, swapped=2, moved_out=2, moved_in=0, dropped=0, handover_s=None, reason=""),
        ),
    )
    group = GroupStatus(
        name=share.group,
        min=0.25,
        max=0.25,
        weight=1.0,
        priority="normal",
        origin="share",
        share={"1s": None, "10s": 0.2},
        target=0.25,
        used_s=1.5,
        memory_limit=10,
        memory_used=5,
        unledgered=0,
        reason="",
        clients=clients,
        throttled_s=0.5,
        speed=0.8,
    )
    group = msgspec.to_builtins(group)
    status = {"devices": [{"uuid": fakes.FIRST, "groups": [group, group | {"name": "another"}]}]}
    assert "gemlet_pod_busy_seconds_total{" not in metrics.render([share], status)  # its label is not its own
    status["labels"] = [
        {"uuid": fakes.FIRST, "label": share.group, "busy_s": 1.25},
        {"uuid": "another device", "label": share.group, "busy_s": 7.0},
    ]
    text = metrics.render([share], status)
    labels = f'{{claim="",container="c",namespace="default",pod="p",uuid="{fakes.FIRST}"}}'
    assert f"gemlet_pod_memory_limit_bytes{labels} 10.0" in text
    assert f"gemlet_pod_device_seconds_total{labels} 1.5" in text
    assert f"gemlet_pod_busy_seconds_total{labels} 1.25" in text
    assert f"gemlet_pod_throttled_seconds_total{labels} 0.5" in text
    assert f"gemlet_pod_memory_swapped_bytes{labels} 2.0" in text
    assert f"gemlet_pod_share{labels} 0.2" in text
    assert f"gemlet_pod_share_target{labels} 0.25" in text
    assert f"gemlet_pod_speed{labels} 0.8" in text
    assert "gemlet_pod_memory_resident_limit_bytes{" not in text, "no limit is no line"
    assert "gemlet_node_shares 1.0" in text
    assert text.count("gemlet_pod_share_min{") == 1
