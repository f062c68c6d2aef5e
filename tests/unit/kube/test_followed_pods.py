"""Pods whose annotations change, or that come to use a claim that is a share already."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from gemlet.errors import GemletError
from gemlet.kube import cdi
from gemlet.kube.api_server import ApiError
from gemlet.kube.device_choices import DeviceChoices
from gemlet.kube.escape import check_counted
from gemlet.kube.share import Pod
from tests.unit.kube import fakes


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
    await follower._events.make()


class TestFollower:
    def test_a_changed_annotation_changes_the_share(self, node, run):
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.slot_share()))
        run(applied(follower, fakes.seen_pod(compute_limit="80", priority="latency")))
        changed = node.daemon.opened["default/s0"][0]
        assert (changed.limit, changed.compute, str(changed.priority)) == (80, 25, "latency")
        run(applied(follower, fakes.seen_pod()))
        assert node.daemon.opened["default/s0"][0].limit == 25, "without the annotation it is as it was granted"

    def test_an_annotation_gives_nothing_back_of_which_its_claim_was_held_meanwhile(self, node, run):
        """The share was put back as it had been when its pod's shares were looked up, with what others had by then."""
        user = Pod(namespace="default", name="p", container="c")
        follower, passes = fakes.follower(fakes.FollowedApi(), node), asyncio.Event()
        open_one = node.daemon.open

        async def slow(share, path, *, device):
            if share.group == "default/u1":
                await passes.wait()
            await open_one(share, path, device=device)

        async def scenario():
            for uid in ("u1", "u2"):
                await node.book.open(fakes.claim_share(uid, pod=user, granted=fakes.amounts(16, 40)))
            node.daemon.open = slow
            passes.clear()
            applying = asyncio.create_task(follower._apply(fakes.seen_pod(compute_limit="90")))
            await asyncio.sleep(0)
            less = fakes.amounts(1, 10)
            await node.book.change(msgspec.structs.replace(node.book.shares["claim-u2"], granted=less, amounts=less))
            passes.set()
            await applying

        passes.set()
        run(scenario())
        held = node.book.shares["claim-u2"]
        assert held.granted == fakes.amounts(1, 10)
        assert (held.amounts.memory, held.amounts.compute, held.amounts.limit) == (held.granted.memory, 10, 90)

    def test_nonsense_changes_nothing_and_is_told_once(self, node, run):
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.slot_share()))
        for _ in range(2):
            run(applied(follower, fakes.seen_pod(compute_limit="7")))
        ((path, event),) = api.created
        assert path == "/api/v1/namespaces/default/events"
        assert event["involvedObject"]["name"] == "p"
        assert "compute-limit]: 7 is not valid: expected 25" in event["message"]
        assert node.daemon.opened["default/s0"][0].limit == 25

    def test_nonsense_of_which_too_many_had_an_event_is_told_later(self, node, run, monkeypatch):
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.slot_share()))
        monkeypatch.setattr(follower._events, "tell", lambda *_, **__: False)
        run(applied(follower, fakes.seen_pod(compute="nonsense")))
        monkeypatch.undo()
        run(applied(follower, fakes.seen_pod(compute="nonsense")))
        assert len(api.created) == 1

    def test_what_was_told_of_shares_that_are_gone_is_forgotten(self, node, run):
        """Each kept the annotation that it was about, and pods may be made one after the other."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        for number in range(5):
            run(node.book.open(fakes.slot_share(number)))
            run(applied(follower, fakes.seen_pod(priority=f"{number}" * 250_000)))
            run(node.book.close(f"claim-s{number}"))
        assert sum(len(text) for text in follower._complained.values()) < 2000

    def test_a_pod_that_cannot_be_checked_gets_no_container_into_a_share(self, node, run):
        """By a shape that nobody foresaw."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        run(applied(follower, claiming_pod("odd", "u1", env=[{"nameless": 1}])))
        assert cdi.share_ids(node.cdi) == set()
        assert "cannot be checked" in api.created[0][1]["message"]
        follower._forget("odd")
        assert cdi.share_ids(node.cdi) == {"claim-u1"}
        odd = claiming_pod("odd", "u1", privileged=True)
        odd["spec"]["initContainers"] = [{"name": "i", "resources": {"claims": [{}]}}]
        run(applied(follower, odd))
        assert cdi.share_ids(node.cdi) == set(), "what it uses cannot even be read"

    def test_no_container_starts_in_a_share_that_a_later_pod_would_leave(self, node, run):
        """The kubelet has a claim prepared once, and says nothing of the pods that come to use it."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
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
        assert not node.book.incomplete(run(node.daemon.shares())), "it is not put back"
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

    def test_a_share_is_withheld_from_pods_among_the_host_s_processes_but_for_simulated_gpus(self, node, run):
        """By /proc/PID/root a container's root reaches the files of all others, their shares' sockets among them."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.claim_share("u1")))
        seen = claiming_pod("curious", "u1")
        seen["spec"]["hostPID"] = True
        run(applied(follower, seen))
        assert node.book.withheld() == {"claim-u1"}
        node.book.host = dataclasses.replace(node.book.host, access="simulated")
        run(applied(follower, seen))
        assert node.book.withheld() == set()

    def test_a_share_that_cannot_be_withheld_is_not_said_to_be(self, node, run, monkeypatch, caplog):
        api = fakes.FollowedApi()
        run(node.book.open(fakes.claim_share("u1")))
        fakes.Stuck(node.cdi, monkeypatch)
        hostile = claiming_pod("hostile", "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
        run(applied(fakes.follower(api, node), hostile))
        ((_, event),) = api.created
        assert "no container starts" not in event["message"]
        assert "claim-u1 cannot be withheld from new containers" in event["message"]
        assert "share=claim-u1 not withheld from pod=default/hostile" in caplog.text

    def test_a_pod_that_was_there_before_its_claim_was_a_share_is_checked(self, node, run):
        """It may name its node itself, or come with the pod for which the claim is prepared; the kubelet starts it in
        the share of that one without a word."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
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
        run(follower._events.make())
        ((_, event),) = api.created
        assert (event["involvedObject"]["name"], event["reason"]) == ("hostile", "ShareWithheld")
        assert follower._suspects.keys() == {"hostile", "other"}, "each claim may become a share, or become one again"
        del api.objects["/api/v1/namespaces/default/pods/other"]
        run(follower.look_again("default"))
        assert follower._suspects.keys() == {"hostile"}
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}
        assert not follower._suspects

    @pytest.mark.parametrize("odd", [{"env": [{"name": "LD_PRELOAD", "value": ""}]}, {"resources": {"claims": [{}]}}])
    @pytest.mark.parametrize("before", [True, False])
    def test_a_pod_is_checked_again_when_its_claim_is_a_share_again(self, node, run, odd, before):
        """Closing a share ends what it is withheld for, and a pod that names its node itself stays there meanwhile."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        hostile = claiming_pod("hostile", "u1", **odd)
        api.objects["/api/v1/namespaces/default/pods/hostile"] = hostile
        if before:
            run(applied(follower, hostile))
        for _ in range(3):
            run(node.book.open(fakes.claim_share("u1")))
            run(follower.look_again("default") if before else applied(follower, hostile))
            assert cdi.share_ids(node.cdi) == set()
            run(node.book.close("claim-u1"))
            before = True

    def test_an_annotation_that_chooses_devices_counts_until_its_pod_is_gone(self, node, run):
        """A runtime's plugin goes by what the pod had when its sandbox was made, and the sandbox stays when a container
        is refused. Once the annotation was removed, the pod could start with other GPUs."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        annotated, clean = claiming_pod("p", "u1"), claiming_pod("p", "u1")
        annotated["metadata"]["annotations"] = {"devices.noderesource.dev/container.c": "[]"}
        where = Pod(namespace="default", name="p")
        for pod in (annotated, clean):
            pod["spec"]["nodeName"] = "n1"
            api.objects[where.path] = pod
            run(applied(follower, pod))
            assert cdi.share_ids(node.cdi) == set()
            with pytest.raises(GemletError, match="chooses devices by the runtime"):  # of slots and units
                run(follower.seen(where)) if pod is clean else check_counted(pod, "c")
        run(node.book.close("claim-u1"))
        run(node.book.open(fakes.claim_share("u1")))
        run(follower.look_again("default"))
        assert cdi.share_ids(node.cdi) == set()
        node.restart()
        run(node.book.restore())
        follower = fakes.follower(api, node)
        with pytest.raises(GemletError, match="chooses devices by the runtime"):
            run(follower.seen(where))
        api.objects["/api/v1/pods"] = {"items": [clean]}
        run(follower._follow())
        assert cdi.share_ids(node.cdi) == set()
        api.objects["/api/v1/pods"] = {"items": []}
        run(follower._follow())
        assert cdi.share_ids(node.cdi) == {"claim-u1"}
        assert run(follower.seen(where)) == clean

    @pytest.mark.parametrize("content", ["", "[1]", '{"u":'])
    def test_device_choices_that_cannot_be_kept_do_not_end_the_agent(self, tmp_path, content, caplog):
        file = tmp_path / "choices.json"
        file.write_text(content)
        choices = DeviceChoices(file)
        assert not choices.uids()
        file.unlink()
        (tmp_path / ".choices.json.new").mkdir()
        choices.add("u", "devices.nri.io")
        assert choices.of("u") == "devices.nri.io"
        assert "cannot be read" in caplog.text
        assert "not written" in caplog.text

    def test_no_claim_is_prepared_before_all_pods_have_been_seen(self, node, run, monkeypatch):
        """An agent that had just started, or lost its watch, knew of none that it had to check again."""
        api, lost = fakes.FollowedApi(), asyncio.Event()
        hostile = claiming_pod("hostile", "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
        api.objects["/api/v1/namespaces/default/pods/hostile"] = hostile
        follower = fakes.follower(api, node, listed=False)

        async def watch(path, **query):
            await lost.wait()
            raise ApiError("too old", status=410)
            yield

        async def refused():
            monkeypatch.setattr("gemlet.kube.pods.LIST_SECONDS", 0.0)
            with pytest.raises(ApiError, match="not listed the pods"):
                await follower.look_again("default")

        async def scenario():
            await node.book.open(fakes.claim_share("u1"))
            await refused()
            monkeypatch.setattr("gemlet.kube.pods.LIST_SECONDS", 100.0)
            prepared = asyncio.create_task(follower.look_again("default"))
            await asyncio.sleep(0)
            assert not prepared.done()
            api.objects["/api/v1/pods"] = {"items": [hostile]}
            task = asyncio.create_task(follower.run())
            await prepared
            assert cdi.share_ids(node.cdi) == set()
            lost.set()
            while follower._listed.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
            await refused()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        api.watch = watch
        run(scenario())

    @pytest.mark.parametrize("step", ["_end", "_apply"])
    def test_what_is_late_of_a_pod_is_not_done_to_the_next_of_its_name(self, node, run, step):
        """An end waits for those before it, and for a daemon: the share of the next pod was closed."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        share = fakes.slot_share()
        run(node.book.open(msgspec.structs.replace(share, pod=msgspec.structs.replace(share.pod, uid="next"))))
        before = dict(node.daemon.opened)
        run(getattr(follower, step)(fakes.seen_pod(compute_limit="80")))
        assert node.daemon.opened == before

    def test_a_pod_that_ends_while_it_is_looked_at_withholds_nothing(self, node, run):
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
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
        follower = fakes.follower(fakes.FollowedApi(), node)
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

        class Changing(fakes.FollowedApi):
            async def watch(self, path, **query):
                for limit in range(30, 90):
                    yield "MODIFIED", fakes.seen_pod(compute_limit=str(limit))
                yield "ADDED", hostile
                withheld.set()
                go_on.set()
                await applied_last.wait()
                yield "DELETED", fakes.seen_pod()
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
            await node.book.open(fakes.slot_share())
            await node.book.open(fakes.claim_share("u1"))
            node.daemon.open = slow
            task = asyncio.create_task(fakes.follower(api, node).run())
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
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        for number in range(200):
            run(applied(follower, claiming_pod(f"p{number}", "u1", securityContext={"privileged": True})))
        assert len(api.created) <= 30
        for number in range(200):
            assert cdi.share_ids(node.cdi) == set()
            run(applied(follower, claiming_pod(f"p{number}", "u1")))
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_an_event_that_takes_its_time_does_not_hold_up_the_look_at_others(self, node, run):
        """It waited behind all that the kubelet had asked for about its namespace: with pods of megabytes each event
        took half a minute, and meanwhile a container started in a share that should have been withheld."""

        class Waiting(fakes.FollowedApi):
            async def create(self, path, body):
                await asyncio.Event().wait()

            async def watch(self, path, **query):
                for uid in ("u1", "u2"):
                    yield "ADDED", claiming_pod(f"hostile-{uid}", uid, securityContext={"privileged": True})
                    yield "MODIFIED", fakes.seen_pod(compute_limit=uid)
                yield "MODIFIED", fakes.seen_pod(compute_limit="90")
                await asyncio.Event().wait()

        async def scenario():
            api = Waiting()
            api.objects["/api/v1/pods"] = {"items": []}
            await node.book.open(fakes.slot_share())
            for uid in ("u1", "u2"):
                await node.book.open(fakes.claim_share(uid))
            follower = fakes.follower(api, node)
            tasks = [asyncio.create_task(each.run()) for each in (follower, follower._events)]
            while cdi.share_ids(node.cdi) or node.book.shares["claim-s0"].amounts.limit != 90:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        run(scenario())

    def test_what_is_withheld_stays_so_when_the_agent_restarts(self, node, run):
        """The next agent wrote the file before it had seen the pods, and a container that waited for it started."""
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        for uid in ("u1", "u2"):
            run(node.book.open(fakes.claim_share(uid)))
        run(applied(fakes.follower(fakes.FollowedApi(), node), hostile))
        for pods, files in (([hostile], {"claim-u2"}), ([], {"claim-u1", "claim-u2"})):
            node.restart()
            run(node.book.restore())
            assert cdi.share_ids(node.cdi) == {"claim-u2"}
            assert not node.book.incomplete(run(node.daemon.shares()))
            api = fakes.FollowedApi()
            api.objects["/api/v1/pods"] = {"items": pods}
            run(fakes.follower(api, node)._follow())
            assert cdi.share_ids(node.cdi) == files
        node.restart()
        run(node.book.restore())
        assert len(cdi.share_ids(node.cdi)) == 2, "nothing of it is left"

    def test_one_file_that_cannot_be_written_keeps_no_other_share_back(self, node, run, monkeypatch):
        """The first that failed left all others withheld for as long as the agent ran."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        claims_of = {"u1", "u2", "u3"}
        for uid in claims_of:
            run(node.book.open(fakes.claim_share(uid)))
        hostile = claiming_pod("hostile", "u1")
        hostile["spec"]["resourceClaims"] = [{"name": uid, "resourceClaimName": uid} for uid in claims_of]
        hostile["spec"]["containers"][0]["resources"] = {"claims": [{"name": uid} for uid in claims_of]}
        run(applied(follower, hostile))
        assert cdi.share_ids(node.cdi) == set()
        fakes.full_once(monkeypatch)
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert len(cdi.share_ids(node.cdi)) == 2
        assert node.book.incomplete(run(node.daemon.shares()))
        run(node.book.restore())
        assert len(cdi.share_ids(node.cdi)) == 3

    def test_a_pod_of_another_node_is_not_the_one_that_starts_here(self, node, run):
        """The kubelet names the pod whose container starts, and another of that name may be there meanwhile."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        pod = api.objects["/api/v1/namespaces/default/pods/p"] = {
            "metadata": {"uid": "p"},
            "spec": {"nodeName": "n1"},
        }
        assert run(follower.seen(Pod(namespace="default", name="p"))) == pod
        for where in ("n2", None):
            pod["spec"]["nodeName"] = where
            with pytest.raises(GemletError, match=f"one of {where or 'no node'} now"):
                run(follower.seen(Pod(namespace="default", name="p")))

    def test_a_pod_that_went_unseen_withholds_nothing(self, node, run):
        class Listing(fakes.FollowedApi):
            async def watch(self, path, **query):
                yield "ADDED", claiming_pod("hostile", "u1", securityContext={"privileged": True})
                seen.append(cdi.share_ids(node.cdi))
                yield "DELETED", claiming_pod("hostile", "u1")
                seen.append(cdi.share_ids(node.cdi))
                yield "ADDED", claiming_pod("again", "u1", securityContext={"privileged": True})

        api, seen = Listing(), []
        api.objects["/api/v1/pods"] = {"items": []}
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        run(follower._follow())
        assert seen == [set(), {"claim-u1"}]
        assert cdi.share_ids(node.cdi) == set()
        api.watch = fakes.FakeApi.watch.__get__(api)
        run(follower._follow())
        assert cdi.share_ids(node.cdi) == {"claim-u1"}

    def test_a_pod_of_nonsense_does_not_end_the_agent(self, node, run, caplog):
        api = fakes.FollowedApi()
        odd = claiming_pod("odd", "u1")
        odd["spec"]["containers"] = [{"name": None, "resources": 5}]
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        api.objects["/api/v1/pods"] = {"items": [odd, hostile]}
        run(node.book.open(fakes.claim_share("u1")))
        run(fakes.follower(api, node)._follow())
        assert "pod=default/odd" in caplog.text
        assert cdi.share_ids(node.cdi) == set(), "the next one is heeded"

    def test_a_deleted_pod_ends_its_share_at_once(self, node, run):
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.slot_share()))
        run(node.book.open(fakes.claim_share("u1", pod=Pod(namespace="default", name="p"))))
        run(follower._end(fakes.seen_pod()))
        assert set(node.book.shares) == {"claim-u1"}, "a claim ends when the kubelet says so"

    def test_other_pods_and_other_containers_are_not_meant(self, node, run):
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.slot_share()))
        run(applied(follower, fakes.seen_pod(compute_limit="80", container="sidecar")))
        other = fakes.seen_pod(compute_limit="80")
        other["metadata"]["name"] = "q"
        run(applied(follower, other))
        assert node.daemon.opened["default/s0"][0].limit == 25
