"""Pods of megabytes, which their owners may make: of each there is nothing left while the agent waits for anything.

The kubelet starts any number of containers at once, and the agent has 256 MiB; a pod of 3 MB takes 50 as objects.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from datetime import UTC, datetime

import msgspec
import pytest
from aiohttp import web

from gemlet.kube import api_server
from gemlet.kube.device_plugin import Allocations, Gpus, SlotResource
from gemlet.kube.dra import DraDriver, claim_path
from gemlet.kube.protocol import dra_pb2 as messages
from gemlet.kube.share import Pod
from gemlet.kube.templates import TemplateMaker
from tests.unit.kube import fakes
from tests.unit.kube.test_api_server import with_server
from tests.unit.kube.test_dra import allocated
from tests.unit.kube.test_followed_pods import claiming_pod

SLOTS = [f"{fakes.FIRST}::{number}" for number in range(3)]


class Seen(dict):
    """An object as the apiserver's client reads one, of which it can be told whether it is there."""


class LargePods(fakes.FollowedApi):
    """Gives each pod anew; ``there``: of all that it gave, how many there were whenever something was waited for."""

    def __init__(self, daemon):
        super().__init__()
        self.made = {}
        self.there = []
        self._given = []
        self._open = daemon.open
        daemon.open = self._slow

    async def get(self, path, **query):
        self.look()
        if path not in self.made:
            return await super().get(path, **query)
        given = Seen(self.made[path])
        self._given.append(weakref.ref(given))
        return given

    def look(self):
        self.there.append(sum(given() is not None for given in self._given))

    async def _slow(self, *given, **more):
        self.look()
        await self._open(*given, **more)


@pytest.fixture
def api(node):
    return LargePods(node.daemon)


def pod(name, **spec):
    meta = {"namespace": "default", "name": name, "uid": name, "annotations": {}}
    return {"metadata": meta, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]} | spec}


def test_before_a_container_with_a_slot_starts(node, api, run):
    async def scenario():
        gpus, kubelet = Gpus(), fakes.FakeKubelet()
        await gpus.set(list(fakes.GPUS))
        follower = fakes.follower(api, node)
        slots = SlotResource(
            Allocations(node.book, gpus, kubelet=kubelet, pods=follower.seen), per_gpu=4, packing="pack"
        )
        for number, slot in enumerate(SLOTS):
            user = Pod(namespace="default", name=f"p{number}", container="c", uid=f"p{number}")
            kubelet.holders[fakes.SLOT, slot] = user
            api.made[user.path] = pod(user.name)
            await slots.allocate([slot])
        await asyncio.gather(*(slots.pre_start([slot]) for slot in SLOTS))

    run(scenario())
    assert len(api.there) == 9, "allocated, asked about, changed"
    assert not any(api.there)


def test_while_a_claim_is_prepared(node, api, run):
    async def scenario():
        gpus = Gpus()
        await gpus.set(list(fakes.GPUS))
        follower = fakes.follower(api, node)
        for name in ("hostile", "another"):  # which are looked at again
            seen = claiming_pod(name, "u1", env=[{"name": "LD_PRELOAD", "value": ""}])
            api.made[f"/api/v1/namespaces/default/pods/{name}"] = seen
            await follower._check(seen)
        api.objects[claim_path("default", "u1")] = allocated("u1", pods=("hostile", "p", "q"))
        for name in ("p", "q"):
            api.made[f"/api/v1/namespaces/default/pods/{name}"] = claiming_pod(name, "u1")
        driver = DraDriver(node.book, gpus, api, pool="n1", look_again=follower.look_again)
        claim = messages.Claim(namespace="default", name="u1", uid="u1")
        return await driver.NodePrepareResources(messages.NodePrepareResourcesRequest(claims=[claim]))

    assert run(scenario()).claims["u1"].error == ""
    assert len(api.there) == 8, "a claim, a pod that is refused and one that is not, the daemon, all four pods"
    assert not any(api.there)


def test_while_annotations_of_all_pods_wait_for_the_daemon(node, api, run):
    follower = fakes.follower(api, node)
    given = []

    async def scenario():
        for number in range(3):
            name = f"p{number}"
            share = fakes.slot_share(number)
            await node.book.open(msgspec.structs.replace(share, pod=Pod(namespace="default", name=name)))
            seen = Seen(pod(name))
            seen["metadata"]["annotations"] = {"gemlet.dev/compute-limit": "80"}
            seen["metadata"]["managedFields"] = fields = [Seen()]
            given.extend((weakref.ref(seen), weakref.ref(fields[0])))
            await follower._look(seen)
            del seen, fields
        assert all(each() is None for each in given)
        for step, kept in follower._to_do.values():
            await step(kept)

    run(scenario())
    assert [share.amounts.limit for share in node.book.shares.values()] == [80] * 3


class Listed(fakes.FollowedApi):
    """Has three pods in every list, and three as events; ``there``: of these, how many there were at each next one."""

    def __init__(self):
        super().__init__()
        self.there = []
        self.version = "1"
        self._given = []

    def listed(self, path, **query):
        self.version = "1"
        return self

    def __aiter__(self):
        return self._pods()

    async def _pods(self):
        for number in range(4):
            self.there.append(sum(given() is not None for given in self._given))
            if number < 3:
                yield self._one(number)

    async def watch(self, path, **query):
        async for seen in self._pods():
            yield "ADDED", seen
            del seen
        raise TimeoutError  # as it would go on for ever

    async def delete(self, path):
        pass

    def _one(self, number):
        seen = Seen(pod(f"p{number}"))
        seen["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"  # which makes it a template, too
        self._given.append(weakref.ref(seen))
        return seen


def test_while_the_next_of_a_list_or_of_a_watch_is_waited_for(node, run):
    api = Listed()
    maker = TemplateMaker(api)
    for follow, count in ((fakes.follower(api, node)._follow, 8), (maker._follow, 8), (maker._heed, 8)):
        with pytest.raises(TimeoutError):
            run(follow())
        assert api.there == [0] * count, follow
        api.there.clear()
    run(maker.sweep(datetime.now(UTC)))
    maker._made.add(("default", "p0"))
    run(maker.deleted(pod("p0")))
    assert api.there == [0] * 12, "templates, pods, and pods of a namespace"


def test_of_what_is_watched_nothing_stays_where_it_is_read(monkeypatch):
    given, there = [], []

    async def lines(connection):
        for number in range(3):
            there.append(sum(each() is not None for each in given))
            yield json.dumps({"type": "ADDED", "object": {"n": number}}).encode()

    def event(line):
        given.append(weakref.ref(seen := Seen(line["object"])))
        return line["type"], seen

    monkeypatch.setattr(api_server, "_lines", lines)
    monkeypatch.setattr(api_server, "_event", event)

    async def scenario(api):
        events = api.watch("/pods", resourceVersion="1")
        for number in range(3):
            assert (await anext(events))[1] == {"n": number}
        await events.aclose()

    with_server(scenario)
    assert there == [0, 0, 0]


def test_only_some_answers_come_at_a_time(monkeypatch):
    monkeypatch.setattr(api_server, "AT_ONCE", 2)
    there, most, enough = 0, 0, None

    async def slow(request):
        nonlocal there, most
        there += 1
        most = max(most, there)
        if there == 2:
            enough.set()
        await enough.wait()
        for _ in range(20):  # in which a third would come
            await asyncio.sleep(0)
        there -= 1
        return web.json_response({})

    async def scenario(api):
        nonlocal enough
        enough = asyncio.Event()
        await asyncio.gather(*(api.get("/slow") for _ in range(10)))

    with_server(scenario, slow=slow)
    assert most == 2


def test_who_asks_of_one_namespace_keeps_no_other_waiting():
    """A hundred pods of 1.5 MB with one claim: the kubelet has it prepared for each of them, all of them are read each
    time, and another's pod waited for 40 s, nearly as long as the kubelet does."""
    held, come, most = None, 0, 0

    async def held_up(request):
        nonlocal come, most
        come += 1
        most = max(most, come)
        await held.wait()
        come -= 1
        return web.json_response({})

    async def quick(request):
        return web.json_response({})

    async def scenario(api):
        nonlocal held
        held = asyncio.Event()
        many = [asyncio.create_task(api.get("/namespaces/many/pods", in_line=True)) for _ in range(100)]
        while come < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for path in ("/namespaces/few/pods", "/plain"):
            assert await api.get(path, in_line=True) == {}
        assert await api.get("/namespaces/many/claims") == {}, "asked by the agent itself"
        held.set()
        await asyncio.gather(*many)
        assert most == 2
        assert not api._queues, "nothing is kept of a namespace"

    with_server(
        scenario,
        plain=quick,
        **{f"namespaces/{name}": quick for name in ("few/pods", "many/claims")},
        **{"namespaces/many/pods": held_up},
    )
