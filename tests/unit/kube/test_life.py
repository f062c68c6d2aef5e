"""What happens to shares while nobody calls: pods end, annotations change, templates fall out of use."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gemlet.daemon.status import ClientStatus, GroupStatus, SwapStatus
from gemlet.errors import GemletError
from gemlet.kube import cdi, metrics, reaper, templates
from gemlet.kube.admission import patch, template_name
from gemlet.kube.api_server import ApiError
from gemlet.kube.ask import asks
from gemlet.kube.device_plugin import Gpus
from gemlet.kube.dra import claim_path
from gemlet.kube.lost_gpus import LossTeller
from gemlet.kube.pods import PodFollower
from gemlet.kube.reaper import Reaper
from gemlet.kube.share import Pod
from tests.unit.kube import fakes

SLOT = "gemlet.dev/share"


def slot_share(number=0):
    made = fakes.claim_share(f"s{number}", pod=Pod(namespace="default", name="p", container="c"))
    devices = {SLOT: (f"{fakes.FIRST}::{number}",)}
    return msgspec.structs.replace(made, claim=None, claim_uid="", requests={}, devices=devices)


class TestReaper:
    def test_a_share_goes_when_the_kubelet_knows_no_holder_twice(self, node, run):
        kubelet = fakes.FakeKubelet()
        looker = Reaper(node.book, kubelet, fakes.FakeApi(), node="n1", young=0)
        run(node.book.open(slot_share()))
        kubelet.holders[SLOT, f"{fakes.FIRST}::0"] = Pod(namespace="default", name="p", container="c")
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
        looker = Reaper(node.book, fakes.FakeKubelet(), api, node="n1", young=0)
        where = "/api/v1/namespaces/default/pods/p"
        share = slot_share()
        run(node.book.open(share))

        async def down(path, **query):
            raise ApiError("no answer", status=0)

        asked, api.get = api.get, down
        for _ in range(4):
            assert run(looker.look()) == []
        api.get = asked
        for phase in ("Pending", "Running"):
            api.objects[where] = {"metadata": {}, "spec": {"nodeName": "n1"}, "status": {"phase": phase}}
            assert run(looker.look()) == []
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        for meta, pod in (
            ({}, {"spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}}),
            (going, {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}),
            ({}, {"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}),
            ({}, {"spec": {}}),
        ):
            api.objects[where] = {"metadata": meta} | pod
            run(looker.look())
            assert node.book.shares == {}, pod
            run(node.book.open(share))
            run(looker.look())

    def test_a_clock_that_is_set_back_keeps_no_share(self, node, run):
        share = msgspec.structs.replace(slot_share(), opened=reaper.time.time() + 3600)
        run(node.book.open(share))
        looker = Reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi(), node="n1")
        run(looker.look())
        assert run(looker.look()) == [share.id]

    def test_a_young_share_is_left_alone(self, node, run):
        looker = Reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi(), node="n1")
        share = msgspec.structs.replace(slot_share(), opened=reaper.time.time())
        run(node.book.open(share))
        for _ in range(3):
            assert run(looker.look()) == []

    def test_a_claim_goes_when_it_is_gone_or_another_one(self, node, run):
        api = fakes.FakeApi()
        looker = Reaper(node.book, fakes.FakeKubelet(), api, node="n1", young=0)
        run(node.book.open(fakes.claim_share("u1")))
        run(node.book.open(fakes.claim_share("u2")))
        allocated = {"allocation": {"devices": {}}}
        api.objects[claim_path("default", "u1")] = {"metadata": {"uid": "u1"}, "status": allocated}
        api.objects[claim_path("default", "u2")] = {"metadata": {"uid": "other"}, "status": allocated}
        run(looker.look())
        assert run(looker.look()) == ["claim-u2"]
        api.objects.clear()
        run(looker.look())
        assert run(looker.look()) == ["claim-u1"]
        assert node.leftovers() == []

    def test_an_apiserver_that_does_not_answer_costs_nobody_a_share(self, node, run):
        class Down:
            async def get(self, path, **query):
                raise ApiError("no answer", status=0)

        looker = Reaper(node.book, fakes.FakeKubelet(), Down(), node="n1", young=0)
        run(node.book.open(fakes.claim_share("u1")))
        for _ in range(3):
            assert run(looker.look()) == []

    def test_a_share_in_use_is_tried_again(self, node, run, monkeypatch):
        monkeypatch.setattr("gemlet.kube.book.CLOSE_SECONDS", 0.05)
        looker = Reaper(node.book, fakes.FakeKubelet(), fakes.FakeApi(), node="n1", young=0)
        run(node.book.open(slot_share()))
        node.daemon.busy.add("default/s0")
        for _ in range(3):
            assert run(looker.look()) == []
        node.daemon.busy.clear()
        assert run(looker.look()) == ["claim-s0"]


class FollowedApi(fakes.FakeApi):
    """Gives a list of pods and then one event each."""

    def __init__(self):
        super().__init__()
        self.created = []

    async def create(self, path, body):
        self.created.append((path, body))


def seen_pod(**given):
    notes = {f"gemlet.dev/{name.replace('_', '-')}": value for name, value in given.items()}
    return {"metadata": {"namespace": "default", "name": "p", "uid": "u", "annotations": notes}, "spec": {}}


def claiming_pod(name, claim, **container):
    uses = {"name": "c", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [uses | container], "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]},
    }


async def applied(follower, seen):
    """What is done with a pod that has come or changed."""
    await follower._check(seen)
    await follower._apply(seen)


class TestFollower:
    def test_a_changed_annotation_changes_the_share(self, node, run):
        follower = PodFollower(FollowedApi(), node.book, "n1")
        run(node.book.open(slot_share()))
        run(applied(follower, seen_pod(compute_limit="80", priority="latency")))
        changed = node.daemon.opened["default/s0"][0]
        assert (changed.limit, changed.compute, str(changed.priority)) == (80, 25, "latency")
        run(applied(follower, seen_pod()))
        assert node.daemon.opened["default/s0"][0].limit == 25, "without the annotation it is as it was granted"

    def test_nonsense_changes_nothing_and_is_told_once(self, node, run):
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        run(node.book.open(slot_share()))
        for _ in range(2):
            run(applied(follower, seen_pod(compute_limit="7")))
        ((path, event),) = api.created
        assert path == "/api/v1/namespaces/default/events"
        assert event["involvedObject"]["name"] == "p"
        assert "compute-limit]: 7 is not valid: expected 25" in event["message"]
        assert node.daemon.opened["default/s0"][0].limit == 25

    def test_what_was_told_of_shares_that_are_gone_is_forgotten(self, node, run):
        """Each kept the annotation that it was about, and pods may be made one after the other."""
        follower = PodFollower(FollowedApi(), node.book, "n1")
        for number in range(5):
            run(node.book.open(slot_share(number)))
            run(applied(follower, seen_pod(priority=f"{number}" * 250_000)))
            run(node.book.close(f"claim-s{number}"))
        assert sum(len(text) for text in follower._complained.values()) < 2000

    def test_no_container_starts_in_a_share_that_a_later_pod_would_leave(self, node, run):
        """The kubelet has a claim prepared once, and says nothing of the pods that come to use it."""
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        run(node.book.open(fakes.claim_share("u1")))
        run(node.book.open(fakes.claim_share("u2")))
        run(applied(follower, claiming_pod("good", "u1")))
        assert len(cdi.share_ids(node.cdi)) == 2
        hostile = claiming_pod("hostile", "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
        for _ in range(2):
            run(applied(follower, hostile))
            assert cdi.share_ids(node.cdi) == {"claim-u2"}
        ((_, event),) = api.created
        assert (event["involvedObject"]["name"], event["reason"]) == ("hostile", "ShareWithheld")
        assert "env[LD_PRELOAD]" in event["message"]
        assert not node.book.incomplete(set(node.daemon.opened)), "it is not put back"
        run(node.book.restore())
        run(node.book.open(fakes.claim_share("u1")))
        assert cdi.share_ids(node.cdi) == {"claim-u2"}
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert len(cdi.share_ids(node.cdi)) == 2
        changed = claiming_pod("good", "u1")
        changed["metadata"]["annotations"] = {"nvidia.cdi.k8s.io/container.c": "nvidia.com/gpu=all"}
        run(applied(follower, changed))
        assert cdi.share_ids(node.cdi) == {"claim-u2"}
        run(node.book.close("claim-u1"))
        run(node.book.open(fakes.claim_share("u1")))
        assert len(cdi.share_ids(node.cdi)) == 2, "what is closed is forgotten"

    def test_a_pod_that_was_there_before_its_claim_was_a_share_is_checked(self, node, run):
        """It may name its node itself, or come with the pod for which the claim is prepared; the kubelet starts it in
        the share of that one without a word."""
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        hostile = claiming_pod("hostile", "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
        other = claiming_pod("other", "someone-elses", securityContext={"privileged": True})
        for pod in (claiming_pod("good", "u1"), hostile, other):
            api.objects[f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"] = pod
            run(applied(follower, pod))
        run(node.book.open(fakes.claim_share("u1")))
        run(follower.look_again("elsewhere"))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}
        run(follower.look_again("default"))
        assert cdi.share_ids(node.cdi) == set()
        ((_, event),) = api.created
        assert (event["involvedObject"]["name"], event["reason"]) == ("hostile", "ShareWithheld")
        assert len(follower._suspects) == 1, "what has become a share is followed, what is none may become one"
        del api.objects["/api/v1/namespaces/default/pods/other"]
        run(follower.look_again("default"))
        assert not follower._suspects
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_a_pod_that_ends_while_it_is_looked_at_withholds_nothing(self, node, run):
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        run(applied(follower, hostile))
        run(node.book.open(fakes.claim_share("u1")))

        async def late(path, **query):
            follower._forget("hostile")
            return hostile

        api.get = late
        run(follower.look_again("default"))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_pods_that_cannot_be_looked_at_again_are_no_good_pods(self, node, run):
        follower = PodFollower(FollowedApi(), node.book, "n1")
        run(applied(follower, claiming_pod("hostile", "u1", securityContext={"privileged": True})))

        async def down(path, **query):
            raise ApiError("no answer", status=0)

        follower._api.get = down
        with pytest.raises(ApiError, match="no answer"):
            run(follower.look_again("default"))

    def test_a_pod_that_changes_without_end_does_not_hold_up_the_look_at_others(self, node, run):
        """Each change is one of the daemon's and of the disk's; meanwhile a container started in a share that should
        have been withheld. A pod's end waits for its programs."""
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})

        class Changing(FollowedApi):
            async def watch(self, path, **query):
                for limit in range(30, 90):
                    yield "MODIFIED", seen_pod(compute_limit=str(limit))
                yield "ADDED", hostile
                withheld.set()
                go_on.set()
                await applied_last.wait()
                yield "DELETED", seen_pod()
                await asyncio.Event().wait()

        api, opened, limits = Changing(), node.daemon.open, []
        api.objects["/api/v1/pods"] = {"items": []}

        async def slow(share, path, *, device):
            await go_on.wait()
            await opened(share, path, device=device)
            limits.append(share.amounts.limit)
            if limits[-1] == 89:
                applied_last.set()

        async def scenario():
            await node.book.open(slot_share())
            await node.book.open(fakes.claim_share("u1"))
            node.daemon.open = slow
            task = asyncio.create_task(PodFollower(api, node.book, "n1").run())
            await withheld.wait()
            assert cdi.share_ids(node.cdi) == set()
            while "claim-s0" in node.book.shares:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert len(limits) <= 2, "what is not the last is not made"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        withheld, go_on, applied_last = asyncio.Event(), asyncio.Event(), asyncio.Event()
        run(scenario())

    def test_countless_pods_of_a_namespace_do_not_hold_up_the_look_at_others(self, node, run):
        """While an event is made of each, a container starts in a share that should have been withheld."""
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        run(node.book.open(fakes.claim_share("u1")))
        for number in range(200):
            run(applied(follower, claiming_pod(f"p{number}", "u1", securityContext={"privileged": True})))
        assert len(api.created) <= 30
        for number in range(200):
            assert cdi.share_ids(node.cdi) == set()
            run(applied(follower, claiming_pod(f"p{number}", "u1")))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_what_is_withheld_stays_so_when_the_agent_restarts(self, node, run):
        """The next agent wrote the file before it had seen the pods, and a container that waited for it started."""
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        for uid in ("u1", "u2"):
            run(node.book.open(fakes.claim_share(uid)))
        run(applied(PodFollower(FollowedApi(), node.book, "n1"), hostile))
        for pods, files in (([hostile], {"claim-u2"}), ([], {"claim-u1", "claim-u2"})):
            node.restart()
            run(node.book.restore())
            assert cdi.share_ids(node.cdi) == {"claim-u2"}
            assert not node.book.incomplete(set(node.daemon.opened))
            api = FollowedApi()
            api.objects["/api/v1/pods"] = {"items": pods}
            run(PodFollower(api, node.book, "n1")._follow())
            assert cdi.share_ids(node.cdi) == files
        node.restart()
        run(node.book.restore())
        assert len(cdi.share_ids(node.cdi)) == 2, "nothing of it is left"

    def test_one_file_that_cannot_be_written_keeps_no_other_share_back(self, node, run, monkeypatch):
        """The first that failed left all others withheld for as long as the agent ran."""
        follower = PodFollower(FollowedApi(), node.book, "n1")
        claims_of = {"u1", "u2", "u3"}
        for uid in claims_of:
            run(node.book.open(fakes.claim_share(uid)))
        hostile = claiming_pod("hostile", "u1")
        hostile["spec"]["resourceClaims"] = [{"name": uid, "resourceClaimName": uid} for uid in claims_of]
        hostile["spec"]["containers"][0]["resources"] = {"claims": [{"name": uid} for uid in claims_of]}
        run(applied(follower, hostile))
        assert cdi.share_ids(node.cdi) == set()
        write, full = cdi.write, [28]

        def tried(*given):
            if full:
                raise OSError(full.pop(), "No space left on device")
            return write(*given)

        monkeypatch.setattr(cdi, "write", tried)
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert len(cdi.share_ids(node.cdi)) == 2
        assert node.book.incomplete(set(node.daemon.opened))
        run(node.book.restore())
        assert len(cdi.share_ids(node.cdi)) == 3

    def test_a_pod_of_another_node_is_not_the_one_that_starts_here(self, node, run):
        """The kubelet names the pod whose container starts, and another of that name may be there meanwhile."""
        api = FollowedApi()
        follower = PodFollower(api, node.book, "n1")
        pod = api.objects["/api/v1/namespaces/default/pods/p"] = {"spec": {"nodeName": "n1"}}
        assert run(follower.seen(Pod(namespace="default", name="p"))) == pod
        for where in ("n2", None):
            pod["spec"]["nodeName"] = where
            with pytest.raises(GemletError, match=f"one of {where or 'no node'} now"):
                run(follower.seen(Pod(namespace="default", name="p")))

    def test_a_pod_that_went_unseen_withholds_nothing(self, node, run):
        class Listing(FollowedApi):
            async def watch(self, path, **query):
                yield "ADDED", claiming_pod("hostile", "u1", securityContext={"privileged": True})
                seen.append(cdi.share_ids(node.cdi))
                yield "DELETED", claiming_pod("hostile", "u1")
                seen.append(cdi.share_ids(node.cdi))
                yield "ADDED", claiming_pod("again", "u1", securityContext={"privileged": True})

        api, seen = Listing(), []
        api.objects["/api/v1/pods"] = {"items": []}
        follower = PodFollower(api, node.book, "n1")
        run(node.book.open(fakes.claim_share("u1")))
        run(follower._follow())
        assert seen == [set(), {"claim-u1"}]
        assert cdi.share_ids(node.cdi) == set()
        api.watch = fakes.FakeApi.watch.__get__(api)
        run(follower._follow())
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_a_pod_of_nonsense_does_not_end_the_agent(self, node, run, caplog):
        api = FollowedApi()
        odd = claiming_pod("odd", "u1")
        odd["spec"]["containers"] = [{"name": None, "resources": 5}]
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        api.objects["/api/v1/pods"] = {"items": [odd, hostile]}
        run(node.book.open(fakes.claim_share("u1")))
        run(PodFollower(api, node.book, "n1")._follow())
        assert "pod=default/odd" in caplog.text
        assert cdi.share_ids(node.cdi) == set(), "the next one is heeded"

    def test_a_deleted_pod_ends_its_share_at_once(self, node, run):
        follower = PodFollower(FollowedApi(), node.book, "n1")
        run(node.book.open(slot_share()))
        run(node.book.open(fakes.claim_share("u1", pod=Pod(namespace="default", name="p"))))
        run(follower._end(seen_pod()))
        assert set(node.book.shares) == {"claim-u1"}, "a claim ends when the kubelet says so"

    def test_other_pods_and_other_containers_are_not_meant(self, node, run):
        follower = PodFollower(FollowedApi(), node.book, "n1")
        run(node.book.open(slot_share()))
        run(applied(follower, seen_pod(compute_limit="80", container="sidecar")))
        other = seen_pod(compute_limit="80")
        other["metadata"]["name"] = "q"
        run(applied(follower, other))
        assert node.daemon.opened["default/s0"][0].limit == 25


class TestLossTeller:
    def test_the_pods_of_a_lost_gpu_are_told_once_each_time(self, node, run):
        api, gpus = FollowedApi(), Gpus()
        api.objects["/api/v1/namespaces/default/pods/p"] = seen_pod()

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
            task = asyncio.create_task(LossTeller(api, node.book, gpus).run())
            assert await turns() == 0
            await gpus.set([second])
            assert await turns() == 1
            await gpus.set([second, first])
            assert await turns() == 1
            await gpus.set([second])
            assert await turns() == 2
            task.cancel()

        run(scenario())
        for path, event in api.created:
            assert path == "/api/v1/namespaces/default/events"
            assert (event["involvedObject"]["name"], event["reason"], event["type"]) == ("p", "GpuLost", "Warning")
            assert fakes.FIRST in event["message"]


def admitted_pod(memory="16Gi", namespace="default"):
    from gemlet.kube.admission import Cluster

    notes = {"gemlet.dev/memory": memory, "gemlet.dev/compute": "25"}
    meta = {"name": "p", "namespace": namespace, "uid": "u", "annotations": notes}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}
    for operation in patch(pod, Cluster(face="dra")):
        if operation["path"] == "/spec/resourceClaims":
            pod["spec"]["resourceClaims"] = operation["value"]
    return pod


class TestTemplates:
    def test_the_template_a_pod_names_is_made_once(self, run):
        api = FollowedApi()
        maker = templates.TemplateMaker(api)
        assert run(maker.make(admitted_pod()))
        assert not run(maker.make(admitted_pod()))
        assert run(maker.make(admitted_pod(namespace="other")))
        (path, made), _ = api.created
        assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
        assert made["metadata"]["name"] == template_name(asks(admitted_pod())[0])

    def test_a_template_that_is_deleted_is_made_again_for_the_pods_that_name_it(self, run):
        api = FollowedApi()
        pod = admitted_pod()
        api.objects["/api/v1/namespaces/default/pods"] = {"items": [pod]}
        maker = templates.TemplateMaker(api)
        assert run(maker.make(pod))
        meta = {"namespace": "default", "name": templates.named_templates(pod)[0]}
        run(maker.deleted({"metadata": meta}))
        assert [body["metadata"]["name"] for _, body in api.created] == [meta["name"], meta["name"]]
        run(maker.deleted({"metadata": meta | {"name": "gemlet-unused"}}))
        assert len(api.created) == 2, "no pod names the other"

    def test_templates_that_no_pod_has_named_cost_nothing_when_they_are_deleted(self, run):
        """One who may make and delete templates had the webhook list the pods of the namespace for each."""
        api, asked = FollowedApi(), []
        api.listed = lambda path, **query: asked.append(path)
        maker = templates.TemplateMaker(api)
        for number in range(100):
            run(maker.deleted({"metadata": {"namespace": "default", "name": f"gemlet-{number:012x}"}}))
        assert asked == []

    def test_a_template_that_is_swept_away_under_a_new_pod_is_made_again(self, run):
        now = datetime(2026, 1, 2, tzinfo=UTC)
        pod = admitted_pod()
        meta = {"namespace": "default", "name": templates.named_templates(pod)[0]}

        class Emptied(FollowedApi):
            async def delete(self, path):
                self.objects["/api/v1/namespaces/default/pods"] = {"items": [pod]}
                assert not await maker.make(pod), "it is there"

        api = Emptied()
        maker = templates.TemplateMaker(api)
        assert run(maker.make(pod))
        api.objects[templates.TEMPLATES] = {
            "items": [{"metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}}]
        }
        api.objects["/api/v1/pods"] = {"items": []}
        assert run(maker.sweep(now)) == [meta["name"]]
        run(maker.deleted({"metadata": meta}))
        assert len(api.created) == 2

    def test_a_namespace_that_refuses_templates_does_not_hold_up_the_others(self, run):
        class Refusing(FollowedApi):
            async def create(self, path, body):
                if "/namespaces/ending/" in path:
                    raise ApiError("namespace ending is being terminated", status=403)
                return await super().create(path, body)

            async def watch(self, path, **query):
                raise asyncio.CancelledError
                yield

        api = Refusing()
        pods = [admitted_pod(namespace="ending"), admitted_pod()]
        api.objects["/api/v1/pods"] = {"items": pods, "metadata": {"resourceVersion": "1"}}
        with pytest.raises(asyncio.CancelledError):
            run(templates.TemplateMaker(api)._follow())
        assert [path for path, _ in api.created] == [templates.templates_path("default")]

    def test_a_pod_of_nonsense_does_not_end_the_webhook(self, run):
        class Ending(FollowedApi):
            async def watch(self, path, **query):
                raise asyncio.CancelledError
                yield

        api = Ending()
        digits, other = admitted_pod(namespace="digits"), admitted_pod(namespace="other")
        digits["metadata"]["annotations"]["gemlet.dev/gpus"] = "1" * 5000
        api.objects[f"{templates.templates_path('digits')}/{templates.named_templates(digits)[0]}"] = {}
        other["spec"]["containers"] = [{"name": None}]
        api.objects["/api/v1/pods"] = {"items": [digits, other, admitted_pod()], "metadata": {"resourceVersion": "1"}}
        with pytest.raises(asyncio.CancelledError):
            run(templates.TemplateMaker(api)._follow())
        assert [path for path, _ in api.created] == [templates.templates_path("default")]

    def test_a_template_that_is_there_is_made(self, run):
        class Present(FollowedApi):
            async def create(self, path, body):
                raise ApiError("already exists", status=409)

        assert run(templates.TemplateMaker(Present()).make(admitted_pod()))

    def test_what_does_not_match_the_annotations_is_not_made(self, run):
        pod = admitted_pod()
        api = FollowedApi()
        name = templates.named_templates(pod)[0]
        api.objects[f"{templates.templates_path('default')}/{name}"] = {}
        pod["metadata"]["annotations"]["gemlet.dev/memory"] = "8Gi"
        assert not run(templates.TemplateMaker(api).make(pod))
        pod["metadata"]["annotations"]["gemlet.dev/memory"] = "nonsense"
        assert not run(templates.TemplateMaker(api).make(pod))
        assert api.created == []

    def test_a_pod_whose_template_nobody_makes_is_told_once(self, run):
        pod = admitted_pod()
        pod["metadata"]["annotations"] = {}
        api = FollowedApi()
        maker = templates.TemplateMaker(api)
        for _ in range(2):
            assert not run(maker.make(pod))
        ((path, told),) = api.created
        assert path == "/api/v1/namespaces/default/events"
        assert (told["involvedObject"]["uid"], told["reason"]) == ("u", "NoShareTemplate")
        assert "spec.resourceClaims[gemlet].resourceClaimTemplateName: there is no gemlet-" in told["message"]
        assert "leave the claim out and ask by gemlet.dev/memory" in told["message"]

    def test_old_templates_that_no_pod_names_are_removed(self, run):
        now = datetime(2026, 1, 2, tzinfo=UTC)
        name = templates.named_templates(admitted_pod())[0]

        def made(name, age):
            stamp = (now - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
            return {"metadata": {"namespace": "default", "name": name, "creationTimestamp": stamp}}

        class Emptied(FollowedApi):
            async def delete(self, path):
                deleted.append(path)

        deleted, api = [], Emptied()
        all_of_them = [made(name, 99999), made("gemlet-old", 99999), made("gemlet-young", 60)]
        api.objects[templates.TEMPLATES] = {"items": all_of_them}
        api.objects["/api/v1/pods"] = {"items": [admitted_pod()]}
        assert run(templates.TemplateMaker(api).sweep(now)) == ["gemlet-old"]
        assert deleted == [f"{templates.templates_path('default')}/gemlet-old"]

    def test_a_pod_of_countless_claims_is_asked_about_a_few_times(self, run):
        class Counting(FollowedApi):
            async def get(self, path, **query):
                asked.append(path)
                return {}

        pod, asked = admitted_pod(), []
        pod["spec"]["resourceClaims"] = [
            {"name": f"gemlet-{number}", "resourceClaimTemplateName": f"t{number}"} for number in range(1000)
        ]
        assert not run(templates.TemplateMaker(Counting()).make(pod))
        assert len(asked) <= 10


def test_metrics_carry_the_names_of_kubernetes():
    share = slot_share()
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
