"""The events of a node's agent: which are made, and when."""

from __future__ import annotations

import pytest

from gemlet.kube import pod_events
from gemlet.kube.api_server import ApiError
from gemlet.kube.pod_events import MOST, PER_MINUTE, PodEvents
from gemlet.kube.share import Pod
from tests.unit.kube import fakes


class BusyApi(fakes.FollowedApi):
    """Fails as often as there are ``errors``."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    async def create(self, path, body):
        if self.errors:
            raise self.errors.pop(0)
        await super().create(path, body)

    def told(self):
        return [body["involvedObject"]["name"] for _, body in self.created]


def tell(events, name, *, namespace="default", **given):
    return events.tell(Pod(namespace=namespace, name=name, uid=name), "text", reason="ShareRefused", **given)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(pod_events, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize("status", [0, 401, 429, 503])
def test_an_event_waits_for_an_apiserver_that_has_no_time(run, status):
    api = BusyApi(ApiError("not now", status=status))
    events = PodEvents(api)
    assert tell(events, "first")
    assert tell(events, "second")
    run(events.make())
    assert api.told() == ["second", "first"], "others do not wait for one that fails"


def test_an_event_is_not_tried_for_ever(run, monkeypatch):
    api = BusyApi(*(ApiError("not now") for _ in range(100)))
    monkeypatch.setattr(pod_events, "TRY_SECONDS", -1.0)
    events = PodEvents(api)
    tell(events, "p")
    run(events.make())
    assert len(api.errors) == 99


@pytest.mark.parametrize("error", [ApiError("its namespace is being deleted", status=403), RuntimeError("odd")])
def test_an_event_that_cannot_be_made_keeps_no_other(run, error):
    api = BusyApi(error)
    events = PodEvents(api)
    tell(events, "first")
    tell(events, "second")
    run(events.make())
    assert api.told() == ["second"]


def test_what_no_user_causes_is_told_however_much_waits(run):
    api = BusyApi()
    events = PodEvents(api)
    assert tell(events, "before", limited=False)
    names = [f"n{number}" for number in range(MOST // PER_MINUTE + 2)]
    made = sum(tell(events, "p", namespace=name) for name in names for _ in range(PER_MINUTE + 1))
    assert made == MOST - 1
    assert tell(events, "after", namespace=names[0], limited=False)
    run(events.make())
    assert len(api.told()) == MOST + 1
    assert {"before", "after"} < set(api.told())
