"""Programs that do not stop in time, and what others say of themselves beside them."""

from __future__ import annotations

import pytest


def lingering(scene, *names):
    """Clients 1, 2 ... of these groups, of whom all but the last do not stop, and the last one runs."""
    s = scene()
    for name in names:
        s.group(name)
    for number, name in enumerate(names, 1):
        s.client(number, name, wants=True)
    while set(s.holders) != set(range(1, len(names) + 1)):
        s.to(s.ms + 1)
    return s


def at_work(s, client, ms, part=1.0):
    begin = s.ms
    for each in range(1, ms + 1):
        s.to(begin + each)
        s.progress(client, part * each)
        s.arbiter.tick(s.now)


@pytest.mark.parametrize("jump", [(2**62, 2**62), (2**63 - 1, 2**62), (10**12, 1)])
def test_what_others_claim_beyond_their_time_is_not_so(scene, jump):
    """So it paid for half of what another did, as if all that were under way."""
    s = lingering(scene, "stopped", "runs")
    s.group("liars")
    s.client(3, "liars")
    s.client(4, "liars")
    before = s.used("stopped")
    for client in (3, 4):
        s.arbiter.progress(client, *jump, 0, 0, 0)
    at_work(s, 2, 1000)
    assert s.used("stopped") - before < 20
    assert s.used("runs") == pytest.approx(1000, abs=25)
