"""Pods whose annotations change, or that come to use a claim that is a share already."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from gemlet.errors import GemletError
from gemlet.kube.api_server import ApiError
from gemlet.kube.device_choices import DeviceChoices
from gemlet.kube.escape import check_counted
from gemlet.kube.permits import refusals
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
        assert node.may_start() == set()
        assert "cannot be checked" in api.created[0][1]["message"]
        odd = claiming_pod("odder", "u1", privileged=True)
        odd["spec"]["initContainers"] = [{"name": "i", "resources": {"claims": [{}]}}]
        run(applied(follower, odd))
        assert node.may_start() == set(), "what it uses cannot even be read"
        assert follower.permits.refused() == {"odd", "odder"}

    def test_a_pod_that_would_leave_its_share_does_not_start_in_it_and_others_do(self, node, run):
        """The kubelet has a claim prepared once, and says nothing of the pods that come to use it."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        run(applied(follower, claiming_pod("good", "u1")))
        hostile = claiming_pod("hostile", "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
        for _ in range(2):
            run(applied(follower, hostile))
            assert node.may_start() == {"good"}
        ((_, event),) = api.created
        assert (event["involvedObject"]["name"], event["reason"]) == ("hostile", "ShareRefused")
        assert "env[LD_PRELOAD]" in event["message"]
        assert "env[LD_PRELOAD]" in refusals(node.permits, "claim-u1")["hostile"], "which the runtime shows"
        assert not node.book.incomplete(run(node.daemon.shares()))
        run(applied(follower, hostile | {"status": {"phase": "Failed"}}))
        assert follower.permits.refused() == set()
        changed = claiming_pod("good", "u1")
        changed["metadata"]["annotations"] = {"nvidia.cdi.k8s.io/container.c": "nvidia.com/gpu=all"}
        run(applied(follower, changed))
        assert node.may_start() == set()

    def test_a_pod_starts_in_no_share_that_it_does_not_use(self, node, run):
        follower = fakes.follower(fakes.FollowedApi(), node)
        for uid in ("u1", "u2"):
            run(node.book.open(fakes.claim_share(uid)))
        run(applied(follower, claiming_pod("p", "u1")))
        assert (node.may_start("claim-u1"), node.may_start("claim-u2")) == ({"p"}, set())
        run(applied(follower, claiming_pod("p", "u2")))
        assert (node.may_start("claim-u1"), node.may_start("claim-u2")) == (set(), {"p"})

    def test_a_pod_among_the_host_s_processes_starts_in_no_share_but_of_simulated_gpus(self, node, run):
        """By /proc/PID/root a container's root reaches the files of all others, their shares' sockets among them."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.claim_share("u1")))
        seen = claiming_pod("curious", "u1")
        seen["spec"]["hostPID"] = True
        run(applied(follower, seen))
        assert node.may_start() == set()
        node.book.host = dataclasses.replace(node.book.host, access="simulated")
        run(applied(fakes.follower(fakes.FollowedApi(), node), seen))
        assert node.may_start() == {"curious"}

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
        run(follower.look_again(msgspec.structs.replace(fakes.claim_share("u1"), claim=("elsewhere", "u1"))))
        assert node.may_start() == set(), "nothing was said of it"
        run(follower.look_again(fakes.claim_share("u1")))
        assert node.may_start() == {"good"}
        run(follower._events.make())
        ((_, event),) = api.created
        assert (event["involvedObject"]["name"], event["reason"]) == ("hostile", "ShareRefused")
        run(node.book.close("claim-u1"))
        follower.permits.enforce(node.book.shares)
        run(node.book.open(fakes.claim_share("u1")))
        del api.objects["/api/v1/namespaces/default/pods/good"]
        run(follower.look_again(fakes.claim_share("u1")))
        assert node.may_start() == set()

    def test_a_pod_for_which_a_claim_is_prepared_does_not_wait_for_the_watch(self, node, run):
        """A watch over a connection that is dead tells of no pod for minutes, and behind one pod that changes without
        end of all others late: containers would wait in vain, and a pod that is not restarted would have failed."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        hostile = claiming_pod("hostile", "u1", securityContext={"privileged": True})
        away, next_one = claiming_pod("away", "u1"), claiming_pod("next", "u1")
        next_one["metadata"]["uid"] = "another"
        for pod, where in ((claiming_pod("good", "u1"), "n1"), (hostile, "n1"), (away, "n2"), (next_one, "n1")):
            pod["spec"]["nodeName"] = where
            api.objects[f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"] = pod
        names = ("good", "hostile", "away", "next", "gone")
        run(node.book.open(fakes.claim_share("u1")))
        run(follower.look_again(fakes.claim_share("u1"), [Pod(namespace="default", name=n, uid=n) for n in names]))
        assert node.may_start() == {"good"}
        assert follower.permits.refused() == {"hostile"}

    def test_each_pod_of_a_claim_is_looked_at_once_however_often_it_is_prepared(self, node, run):
        """The kubelet asks for each of the pods that start together: of 100 there were 10,000 looks."""
        api, asked = fakes.FollowedApi(), []
        follower = fakes.follower(api, node)
        pods = [claiming_pod(f"p{number}", "u1") for number in range(20)]
        for pod in pods:
            api.objects[f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"] = pod
            run(applied(follower, pod))

        async def get(path, **query):
            asked.append(path)
            return api.objects[path]

        follower._api.get = get
        run(node.book.open(fakes.claim_share("u1")))
        for _ in pods:
            run(follower.look_again(fakes.claim_share("u1")))
        assert len(asked) == len(node.may_start()) == len(pods)

    def test_a_container_of_two_shares_starts_in_neither(self, node, run):
        """The second may become a share after the first has been prepared."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        both = claiming_pod("both", "u1")
        both["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "u2"})
        both["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
        api.objects["/api/v1/namespaces/default/pods/both"] = both
        run(applied(follower, both))
        for uid, may in (("u1", {"both"}), ("u2", set())):
            run(node.book.open(fakes.claim_share(uid)))
            run(follower.look_again(fakes.claim_share(uid)))
            assert node.may_start() == may
        assert node.may_start("claim-u2") == set()

    @pytest.mark.parametrize("odd", [{"env": [{"name": "LD_PRELOAD", "value": ""}]}, {"resources": {"claims": [{}]}}])
    def test_a_pod_is_checked_again_when_its_claim_is_a_share_again(self, node, run, odd):
        """A pod that names its node itself stays there meanwhile."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        hostile, good = claiming_pod("hostile", "u1", **odd), claiming_pod("good", "u1")
        for pod in (hostile, good):
            api.objects[f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"] = pod
            run(applied(follower, pod))
        for _ in range(3):
            run(node.book.open(fakes.claim_share("u1")))
            run(follower.look_again(fakes.claim_share("u1")))
            assert node.may_start() == {"good"}
            run(node.book.close("claim-u1"))
            follower.permits.enforce(node.book.shares)
            assert list(node.permits.iterdir()) == []

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
            assert node.may_start() == set()
            with pytest.raises(GemletError, match="chooses devices by the runtime"):  # of slots and units
                run(follower.seen(where)) if pod is clean else check_counted(pod, "c")
        run(node.book.close("claim-u1"))
        run(node.book.open(fakes.claim_share("u1")))
        run(follower.look_again(fakes.claim_share("u1")))
        assert node.may_start() == set()
        node.restart()
        run(node.book.restore())
        follower = fakes.follower(api, node)
        with pytest.raises(GemletError, match="chooses devices by the runtime"):
            run(follower.seen(where))
        api.objects["/api/v1/pods"] = {"items": [clean]}
        run(follower._follow())
        assert node.may_start() == set()
        assert refusals(node.permits, "claim-u1").keys() == {"p"}
        api.objects["/api/v1/pods"] = {"items": []}
        run(follower._follow())
        assert refusals(node.permits, "claim-u1") == {}
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

    @pytest.mark.parametrize("step", ["_end", "_apply"])
    def test_what_is_late_of_a_pod_is_not_done_to_the_next_of_its_name(self, node, run, step):
        """An end waits for those before it, and for a daemon: the share of the next pod was closed."""
        follower = fakes.follower(fakes.FollowedApi(), node)
        share = fakes.slot_share()
        run(node.book.open(msgspec.structs.replace(share, pod=msgspec.structs.replace(share.pod, uid="next"))))
        before = dict(node.daemon.opened)
        run(getattr(follower, step)(fakes.seen_pod(compute_limit="80")))
        assert node.daemon.opened == before

    def test_a_pod_that_ends_while_it_is_looked_at_leaves_nothing(self, node, run):
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(applied(follower, claiming_pod("p", "u1")))
        run(node.book.open(fakes.claim_share("u1")))

        async def late(path, **query):
            follower._forget("p")
            return claiming_pod("p", "u1")

        api.get = late
        run(follower.look_again(fakes.claim_share("u1")))
        assert node.may_start() == set()

    def test_an_object_without_a_name_keeps_no_pod_from_being_looked_at(self, node, run):
        class Odd(fakes.FollowedApi):
            async def watch(self, path, **query):
                for kind in ("ADDED", "DELETED", "MODIFIED", "?"):
                    for odd in fakes.ODD_OBJECTS:
                        yield kind, odd
                yield "ADDED", claiming_pod("q", "u1")

        api = Odd()
        api.objects["/api/v1/pods"] = {"items": [*fakes.ODD_OBJECTS, claiming_pod("p", "u1")]}
        run(node.book.open(fakes.claim_share("u1")))
        run(fakes.follower(api, node)._follow())
        assert node.may_start() == {"p", "q"}

    def test_a_pod_that_is_prepared_while_a_list_is_read_has_not_gone(self, node, run):
        class Listing(fakes.FollowedApi):
            async def get(self, path, **query):
                if path == "/api/v1/pods":
                    await follower.look_again(fakes.claim_share("u1"), [Pod(namespace="default", name="p", uid="p")])
                return await super().get(path, **query)

        api = Listing()
        follower = fakes.follower(api, node)
        pod = api.objects["/api/v1/namespaces/default/pods/p"] = claiming_pod("p", "u1")
        pod["spec"]["nodeName"] = "n1"
        api.objects["/api/v1/pods"] = {"items": []}
        run(node.book.open(fakes.claim_share("u1")))
        run(follower._follow())
        assert node.may_start() == {"p"}

    @pytest.mark.parametrize("end", ["deleted", "deleted unseen", "failed", "before its claim was a share", "replaced"])
    def test_a_container_of_a_pod_that_has_ended_is_told_so_and_does_not_wait(self, node, run, end):
        """While it waits, the kubelet has no measurements of the node, and who makes pods can have it wait again and
        again."""
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        pod, place = claiming_pod("p", "u1"), "/api/v1/namespaces/default/pods/p"
        if end not in ("before its claim was a share", "replaced"):
            run(node.book.open(fakes.claim_share("u1")))
            run(follower._check(pod))
            assert node.may_start() == {"p"}
        if end == "deleted":
            follower._forget("p")
        elif end == "failed":
            run(follower._check(pod | {"status": {"phase": "Failed"}}))
        elif end != "deleted unseen":
            run(node.book.open(fakes.claim_share("u1")))
            if end == "replaced":
                api.objects[place] = claiming_pod("p", "u1") | {"metadata": pod["metadata"] | {"uid": "next"}}
            run(follower.look_again(fakes.claim_share("u1"), [Pod(namespace="default", name="p", uid="p")]))
        for _ in range(2):  # each list comes without it
            api.objects["/api/v1/pods"] = {"items": []}
            run(follower._follow())
            assert (node.permits / "claim-u1" / "p").read_text() == "gemlet: the pod has ended\n"

    def test_a_pod_is_checked_once_however_often_it_changes(self, node, run, monkeypatch):
        """With 10,000 mounts that takes a tenth of a second, in which all others of the node wait."""
        checked = []
        monkeypatch.setattr("gemlet.kube.claims.check_pod", lambda pod, *_, **__: checked.append(pod))
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(node.book.open(fakes.claim_share("u1")))
        for number in range(3):
            pod = claiming_pod("p", "u1")
            pod["metadata"]["annotations"] = {"count": str(number)}
            run(follower._check(pod))
        assert len(checked) == 1
        pod["metadata"]["annotations"] = {"devices.noderesource.dev/container.c": "[]"}
        for _ in range(3):
            run(follower._check(pod))
            assert node.may_start() == set()
        assert len(checked) == 2

    def test_pods_that_cannot_be_looked_at_again_are_no_good_pods(self, node, run):
        follower = fakes.follower(fakes.FollowedApi(), node)
        run(applied(follower, claiming_pod("hostile", "u1", securityContext={"privileged": True})))
        follower._api.get = fakes.no_answer
        with pytest.raises(ApiError, match="no answer"):
            run(follower.look_again(fakes.claim_share("u1")))

    def test_a_pod_that_changes_without_end_does_not_hold_up_the_look_at_others(self, node, run):
        """Each change is one of the daemon's and of the disk's, and a pod's end waits for its programs; meanwhile the
        containers of others wait to be started."""

        class Changing(fakes.FollowedApi):
            async def watch(self, path, **query):
                for limit in range(30, 90):
                    yield "MODIFIED", fakes.seen_pod(compute_limit=str(limit))
                yield "ADDED", claiming_pod("good", "u1")
                looked.set()
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
            await looked.wait()
            assert node.may_start() == {"good"}
            while "claim-s0" in node.book.shares:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert len(limits) <= 2, "what is not the last is not made"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        looked, go_on, applied_last = asyncio.Event(), asyncio.Event(), asyncio.Event()
        run(scenario())

    def test_countless_pods_of_a_namespace_make_few_events(self, node, run):
        api = fakes.FollowedApi()
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        for number in range(200):
            run(applied(follower, claiming_pod(f"p{number}", "u1", securityContext={"privileged": True})))
        assert 0 < len(api.created) <= 30
        run(applied(follower, claiming_pod("good", "u1")))
        assert node.may_start() == {"good"}

    def test_an_event_that_takes_its_time_does_not_hold_up_the_look_at_others(self, node, run):
        """It waited behind all that the kubelet had asked for about its namespace: with pods of megabytes each event
        took half a minute, and meanwhile the containers of others wait to be started."""

        class Waiting(fakes.FollowedApi):
            async def create(self, path, body):
                await asyncio.Event().wait()

            async def watch(self, path, **query):
                for uid in ("u1", "u2"):
                    yield "ADDED", claiming_pod(f"hostile-{uid}", uid, securityContext={"privileged": True})
                    yield "MODIFIED", fakes.seen_pod(compute_limit=uid)
                    yield "ADDED", claiming_pod(f"good-{uid}", uid)
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
            while not node.may_start("claim-u2") or node.book.shares["claim-s0"].amounts.limit != 90:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert follower.permits.refused() == {"hostile-u1", "hostile-u2"}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        run(scenario())

    def test_what_was_decided_stays_so_until_the_next_agent_has_looked(self, node, run):
        """A container that restarts meanwhile starts if its pod may; what nobody has looked at does not."""
        hostile, good = claiming_pod("hostile", "u1", securityContext={"privileged": True}), claiming_pod("good", "u1")
        run(node.book.open(fakes.claim_share("u1")))
        follower = fakes.follower(fakes.FollowedApi(), node)
        for pod in (hostile, good):
            run(applied(follower, pod))
        node.restart()
        run(node.book.restore())
        assert node.may_start() == {"good"}
        api = fakes.FollowedApi()
        api.objects["/api/v1/pods"] = {"items": [hostile, claiming_pod("next", "u1")]}
        follower = fakes.follower(api, node)
        run(follower._follow())
        follower.permits.enforce(node.book.shares)
        assert node.may_start() == {"next"}
        assert refusals(node.permits, "claim-u1").keys() == {"hostile"}

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

    def test_a_pod_that_went_unseen_leaves_nothing(self, node, run):
        class Listing(fakes.FollowedApi):
            async def watch(self, path, **query):
                yield "ADDED", claiming_pod("one", "u1")
                seen.append(node.may_start())
                yield "DELETED", claiming_pod("one", "u1")
                seen.append(node.may_start())
                yield "ADDED", claiming_pod("again", "u1")

        api, seen = Listing(), []
        api.objects["/api/v1/pods"] = {"items": []}
        follower = fakes.follower(api, node)
        run(node.book.open(fakes.claim_share("u1")))
        run(follower._follow())
        assert seen == [{"one"}, set()]
        assert node.may_start() == {"again"}
        api.watch = fakes.FakeApi.watch.__get__(api)
        run(follower._follow())
        assert node.may_start() == set()

    def test_a_pod_of_nonsense_does_not_end_the_agent(self, node, run, caplog):
        api = fakes.FollowedApi()
        odd = claiming_pod("odd", "u1")
        odd["spec"]["containers"] = [{"name": None, "resources": 5}]
        api.objects["/api/v1/pods"] = {"items": [odd, claiming_pod("good", "u1")]}
        run(node.book.open(fakes.claim_share("u1")))
        run(fakes.follower(api, node)._follow())
        assert "pod=default/odd" in caplog.text
        assert node.may_start() == {"good"}, "the next one is heeded"

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
