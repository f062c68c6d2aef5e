"""Clients on devices that they do not use are nobody's peers: programs ask about each device that they see."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.conftest import MS, native
from tests.unit.arbiter.gang_host import SATURATING, Jobs


def ask_about(jobs: Jobs, number: int, device: int) -> None:
    """A job's program attaches to one more device, and does nothing there."""
    engine, spec = jobs.host.engines[device], jobs.workload.jobs[number].group
    engine.set_group(spec)
    group = next(group["id"] for group in engine.arbiter.usage(0) if group["name"] == spec.name)
    engine.arbiter.add_client(1000 + number, group, 0)
    jobs.host.gangs.tie(spec.name)


@pytest.mark.parametrize("asking", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"min": 0.75}, {"min": 0.25}, (0.75, 0.25)),
        ({"max": 0.2}, {}, (0.2, 0.8)),
        ({}, {"priority": "best-effort"}, (1.0, 0.0)),
    ],
    ids=["minima", "maximum", "best effort"],
)
def test_limits_hold_as_if_the_programs_had_not_asked(asking, first, second, expected):
    jobs = Jobs((SATURATING, (0,), first), (SATURATING, (0,), second))
    for number in asking:
        ask_about(jobs, number, 1)
    jobs.run()
    for number, speed in enumerate(expected):
        assert jobs.speed(number) == pytest.approx(speed, abs=0.02)


def test_a_client_that_has_nothing_to_do_while_its_peers_work_is_away_after_a_second():
    devices = [native.Arbiter("fair"), native.Arbiter("fair")]
    gangs = native.Gangs()
    gangs.tie("job")
    for device in devices:
        gangs.add(device)
        device.add_client(1, device.set_group("job", 0), 0)
    gangs.settle(0)
    assert not gangs.is_gang("job")
    for device in devices:
        device.request(1, MS)
    gangs.settle(MS)
    assert gangs.is_gang("job")
    for device in devices:
        device.stopped(1, "idle", 0, 2 * MS)
    for now in (2 * MS, 60_000 * MS):
        gangs.settle(now)
        assert gangs.is_gang("job"), "all its ranks pause"
    devices[0].request(1, 60_000 * MS)
    for now, expected in ((60_000, True), (60_900, True), (61_100, False)):
        gangs.settle(now * MS)
        assert gangs.is_gang("job") is expected, now
    devices[1].request(1, 62_000 * MS)
    gangs.settle(62_000 * MS)
    assert gangs.is_gang("job")
