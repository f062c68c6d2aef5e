"""The clients of one group share what the group gets."""

from __future__ import annotations

import pytest


def run(scene, until, *, newcomers=0.0):
    """Holders keep the device busy until their turns end, then ask again; returns the longest wait of each client.

    ``newcomers``: every so many ms one more client comes, runs for 1 ms and goes.
    """
    asked, waits = dict.fromkeys(scene.waiting, scene.ms), {}
    born, number = scene.ms, 1000
    while scene.ms < until:
        ends = [scene.deadline(client) for client in scene.holders]
        soonest = min((end for end in ends if end is not None), default=until)
        scene.to(min(max(soonest, scene.ms + 0.1), until, scene.ms + 1.0))
        for client in list(scene.holders):
            if client in asked:
                waits[client] = max(waits.get(client, 0.0), scene.ms - asked.pop(client))
            if client >= 1000:
                scene.leave(client)
            elif (end := scene.deadline(client)) is not None and end <= scene.ms:
                scene.stop(client)
                scene.request(client)
                asked[client] = scene.ms
        if newcomers and scene.ms >= born + newcomers:
            born, number = scene.ms, number + 1
            scene.client(number, "g", wants=True)
    for client, since in asked.items():
        waits[client] = max(waits.get(client, 0.0), scene.ms - since)
    return waits


def test_time_alone_is_no_debt_to_those_that_come_meanwhile(scene):
    s = scene()
    s.group("g")
    s.client(1, "g", wants=True)
    s.to(120_000)
    s.stop(1, "idle")
    s.client(2, "g", wants=True)
    s.client(3, "g", wants=True)
    run(s, 121_000)
    s.request(1)
    waits = run(s, 123_000)
    assert waits[1] <= 150


@pytest.mark.parametrize("count", [4, 40])
def test_nobody_waits_for_more_than_two_rounds(scene, count):
    s = scene()
    s.group("g")
    for client in range(count):
        s.client(client, "g", wants=True)
    waits = run(s, 4000.0, newcomers=3.0)
    assert set(range(count)) <= set(waits)
    # A round: a turn for each, of the cycle's part but at least 2 ms; newcomers use a third of the time.
    fair = 1.5 * max(100.0, 2.0 * count)
    assert max(waits[client] for client in range(count)) <= 2.0 * fair
