"""Templates of claims: made for pods that name them, and removed when nobody does."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from gemlet.kube import templates
from gemlet.kube.admission import patch, template_name
from gemlet.kube.api_server import ApiError
from gemlet.kube.ask import asks
from tests.unit.kube import fakes


def admitted_pod(memory="16Gi", namespace="default"):
    from gemlet.kube.admission import Cluster

    notes = {"gemlet.dev/memory": memory, "gemlet.dev/compute": "25"}
    meta = {"name": "p", "namespace": namespace, "uid": "u", "annotations": notes}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}
    for operation in patch(pod, Cluster(face="dra")):
        if operation["path"] == "/spec/resourceClaims":
            pod["spec"]["resourceClaims"] = operation["value"]
    return pod


class Ending(fakes.FollowedApi):
    """With ``pods``, and then the end of those who follow them. ``asked``: lists that were asked for."""

    def __init__(self, *pods):
        super().__init__()
        self.asked = []
        self.objects["/api/v1/pods"] = {"items": list(pods)}
        for pod in pods:
            self.objects.setdefault(templates.pods_path(pod["metadata"]["namespace"]), {"items": []})["items"] += [pod]

    def listed(self, path, **query):
        self.asked.append(path)
        return super().listed(path, **query)

    async def watch(self, path, **query):
        raise asyncio.CancelledError
        yield


async def followed(maker):
    with pytest.raises(asyncio.CancelledError):
        await maker._follow()
    while await maker.make_some():
        pass


class TestTemplates:
    def test_the_template_a_pod_names_is_made_once(self, run):
        api = fakes.FollowedApi()
        maker = templates.TemplateMaker(api)
        assert run(maker.make(admitted_pod()))
        assert not run(maker.make(admitted_pod()))
        assert run(maker.make(admitted_pod(namespace="other")))
        (path, made), _ = api.created
        assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
        assert made["metadata"]["name"] == template_name(asks(admitted_pod())[0])

    def test_a_template_that_is_deleted_is_made_again_for_the_pods_that_name_it(self, run):
        api = fakes.FollowedApi()
        pod = admitted_pod()
        api.objects["/api/v1/namespaces/default/pods"] = {"items": [pod]}
        maker = templates.TemplateMaker(api)
        assert run(maker.make(pod))
        meta = {"namespace": "default", "name": templates.named_templates(pod)[0], "uid": "t"}
        run(maker.deleted({"metadata": meta}))
        assert [body["metadata"]["name"] for _, body in api.created] == [meta["name"], meta["name"]]
        run(maker.deleted({"metadata": meta | {"name": "gemlet-unused"}}))
        assert len(api.created) == 2, "no pod names the other"

    def test_templates_that_no_pod_has_named_cost_nothing_when_they_are_deleted(self, run):
        """One who may make and delete templates had the webhook list the pods of the namespace for each."""
        api, asked = fakes.FollowedApi(), []
        api.listed = lambda path, **query: asked.append(path)
        maker = templates.TemplateMaker(api)
        for number in range(100):
            run(maker.deleted({"metadata": {"namespace": "default", "name": f"gemlet-{number:012x}"}}))
        assert asked == []

    def test_a_template_that_is_swept_away_under_a_new_pod_is_made_again(self, run):
        now = datetime(2026, 1, 2, tzinfo=UTC)
        pod = admitted_pod()
        meta = {"namespace": "default", "name": templates.named_templates(pod)[0], "uid": "t"}

        class Emptied(fakes.FollowedApi):
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
        class Refusing(Ending):
            async def create(self, path, body):
                if "/namespaces/ending/" in path:
                    raise ApiError("namespace ending is being terminated", status=403)
                return await super().create(path, body)

        api = Refusing(admitted_pod(namespace="ending"), admitted_pod())
        run(followed(templates.TemplateMaker(api)))
        assert [path for path, _ in api.created] == [templates.templates_path("default")]

    def test_a_namespace_whose_pods_ask_for_thousands_does_not_hold_up_the_others(self, run):
        """Those of one pod of 180 KB took eleven seconds, and pods of others waited for those of all such pods."""
        greedy = [admitted_pod(namespace="greedy") for _ in range(3)]
        for number, pod in enumerate(greedy):
            pod["metadata"] |= {"name": f"p{number}", "uid": f"u{number}"}
            pod["spec"]["containers"] = [{"name": f"c{n}"} for n in range(200)]
            pod["metadata"]["annotations"] = {
                f"c{n}.gemlet.dev/{key}": value
                for n in range(200)
                for key, value in (("memory", str(2**30 + 1000 * number + n)), ("compute", "1"))
            }
            pod["spec"]["resourceClaims"] = [
                {"name": f"gemlet-c{n}", "resourceClaimTemplateName": template_name(ask)}
                for n, ask in asks(pod).items()
            ]
        api = Ending(*greedy, admitted_pod())
        run(followed(templates.TemplateMaker(api)))
        of_default = [path for path, _ in api.created].index(templates.templates_path("default"))
        assert of_default <= templates.AT_ONCE
        assert len(api.created) == 3 * 200 + 1, "in the end there are all"

    def test_pods_of_one_template_are_read_once(self, run):
        pods = [admitted_pod() for _ in range(50)]
        for number, pod in enumerate(pods):
            pod["metadata"] |= {"name": f"p{number}", "uid": f"u{number}"}
        api = Ending(*pods)
        run(followed(templates.TemplateMaker(api)))
        assert (len(api.created), len(api.asked)) == (1, 2)

    @pytest.mark.parametrize("status", [0, 401, 429, 500])
    def test_an_apiserver_that_does_not_answer_is_asked_again(self, run, monkeypatch, status):
        class Down(Ending):
            async def create(self, path, body):
                if len(self.asked) < 5:
                    raise ApiError("no answer", status=status)
                await super().create(path, body)

        monkeypatch.setattr(templates, "RETRY_SECONDS", 0)
        api = Down(admitted_pod())
        run(followed(templates.TemplateMaker(api)))
        assert len(api.created) == 1

    def test_a_pod_of_nonsense_does_not_end_the_webhook(self, run):
        digits, other = admitted_pod(namespace="digits"), admitted_pod(namespace="other")
        digits["metadata"]["annotations"]["gemlet.dev/gpus"] = "1" * 5000
        other["spec"]["containers"] = [{"name": None}]
        odd = [admitted_pod(namespace="odd") for _ in range(3)]
        for pod, claims in zip(odd, ([None], [{}], [{"name": "gemlet", "resourceClaimTemplateName": []}]), strict=True):
            pod["spec"]["resourceClaims"] = claims
        api = Ending(*odd, digits, other, admitted_pod())
        api.objects[f"{templates.templates_path('digits')}/{templates.named_templates(digits)[0]}"] = {}
        run(followed(templates.TemplateMaker(api)))
        assert [path for path, _ in api.created] == [templates.templates_path("default")]

    def test_a_template_that_is_there_is_made(self, run):
        class Present(fakes.FollowedApi):
            async def create(self, path, body):
                raise ApiError("already exists", status=409)

        assert run(templates.TemplateMaker(Present()).make(admitted_pod()))

    def test_what_does_not_match_the_annotations_is_not_made(self, run):
        pod = admitted_pod()
        api = fakes.FollowedApi()
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
        api = fakes.FollowedApi()
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
            return {"metadata": {"namespace": "default", "name": name, "uid": name, "creationTimestamp": stamp}}

        class Emptied(fakes.FollowedApi):
            async def delete(self, path):
                deleted.append(path)

        deleted, api = [], Emptied()
        all_of_them = [made(name, 99999), made("gemlet-old", 99999), made("gemlet-young", 60)]
        api.objects[templates.TEMPLATES] = {"items": all_of_them}
        api.objects["/api/v1/pods"] = {"items": [admitted_pod()]}
        assert run(templates.TemplateMaker(api).sweep(now)) == ["gemlet-old"]
        assert deleted == [f"{templates.templates_path('default')}/gemlet-old"]

    def test_what_pods_name_takes_no_memory_while_old_templates_are_looked_for(self, run):
        """These took 18 MB, and anybody may make ever more of them: the webhook has 256."""

        class Naming(fakes.FollowedApi):
            async def listed(self, path, **query):
                for number in range(20 if path == "/api/v1/pods" else 0):
                    pod = admitted_pod()
                    pod["spec"]["resourceClaims"] = [
                        {"name": f"gemlet-{claim}", "resourceClaimTemplateName": f"gemlet-{number}-{claim}"}
                        for claim in range(5000)
                    ]
                    yield pod
                    del pod

        tracemalloc.start()
        try:
            run(templates.TemplateMaker(Naming()).sweep(datetime(2026, 1, 2, tzinfo=UTC)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000

    def test_a_pod_of_countless_claims_is_asked_about_a_few_times(self, run):
        class Counting(fakes.FollowedApi):
            async def get(self, path, **query):
                asked.append(path)
                return {}

        pod, asked = admitted_pod(), []
        pod["spec"]["resourceClaims"] = [
            {"name": f"gemlet-{number}", "resourceClaimTemplateName": f"t{number}"} for number in range(1000)
        ]
        assert not run(templates.TemplateMaker(Counting()).make(pod))
        assert len(asked) <= 10

    def test_an_object_without_a_name_ends_nobody_who_follows_all(self, run):
        pod = admitted_pod()

        class Odd(fakes.FollowedApi):
            async def watch(self, path, **query):
                for kind in ("ADDED", "DELETED", "MODIFIED", "?"):
                    for odd in fakes.ODD_OBJECTS:
                        yield kind, odd
                raise asyncio.CancelledError

        api = Odd()
        api.objects[templates.TEMPLATES] = api.objects["/api/v1/pods"] = {"items": [*fakes.ODD_OBJECTS, pod]}
        maker = templates.TemplateMaker(api)
        for follow in (maker._follow, maker._heed):
            with pytest.raises(asyncio.CancelledError):
                run(follow())
        assert list(maker._lines) == ["default"], "the others are seen"
        assert run(maker.sweep(datetime(2026, 1, 2, tzinfo=UTC))) == []
