"""What a group used, waited for, and what would have helped."""

from __future__ import annotations

import pytest

from gemlet.daemon.history_moment import REASONS
from gemlet.daemon.history_recorder import Recorded, RecordedSeries
from gemlet.daemon.status import GroupLimits
from gemlet.monitor.report import FOR, left_for, line, report

GIB = 2.0**30
WAITED = {"max": [1.0] * 10, "waits ahead": [0.2] * 10, "waits both busy": [0.3] * 10}


def recorded(step=1, **values):
    length = len(next(iter(values.values())))
    values = {"clients": [1.0] * length, "min": [0.2] * length, "max": [0.5] * length} | values
    series = RecordedSeries(device="GPU-1", group="g", values=values)
    return Recorded(step_s=step, time=[1_700_000_000 + step * n for n in range(length)], series=[series])


def test_what_was_used():
    found = report(recorded(step=10, share=[0.2, 0.4, None], clients=[1.0, 1.0, 0.0], memory=[GIB, 3 * GIB, 0.0]), "g")
    assert (found.seconds, found.device_s, found.share, found.memory_peak) == (20.0, 6.0, 0.3, 3 * GIB)
    assert found.advice is None
    assert line(found) == "used 6.0 s of device time in 20 s (30%), up to 3 GiB; waited for nothing"


def test_a_maximum_that_made_it_wait_is_said():
    found = report(recorded(share=[0.5] * 10, throttled=[0.4] * 10), "g")
    assert found.throttled_s == 4.0
    assert line(found).endswith("waited 4.0 s at its maximum; a larger maximum would have helped: --max 90%")


def test_turns_of_others_are_said():
    found = report(recorded(share=[0.3] * 10, **WAITED), "g")
    assert found.waits == {"ahead": 2.0, "both busy": 3.0}
    assert "waited 3.0 s for turns beside others" in line(found)
    assert found.advice.startswith("a larger minimum, up to --min 80%, would have helped; ")


@pytest.mark.parametrize(
    ("free", "advised"),
    [
        (1.0, "a larger minimum, up to --min 80%, would have helped; or --priority latency for short requests"),
        (0.429, "a larger minimum, up to --min 42%, would have helped, no more: other groups hold the rest; or "),
        (0.2, "a larger minimum would have helped, but other groups hold the rest: lower theirs with `gemlet set`, "),
    ],
)
def test_no_minimum_is_proposed_that_others_hold(free, advised):
    found = report(recorded(share=[0.3] * 10, **WAITED), "g", free=free)
    assert found.advice.startswith(advised)


def test_a_group_of_class_latency_is_not_told_to_become_one():
    found = report(recorded(share=[0.3] * 10, requests=[5.0] * 10, **WAITED), "g")
    assert found.advice == "a larger minimum, up to --min 80%, would have helped"
    found = report(recorded(share=[0.3] * 10, requests=[None] * 9 + [5.0], **WAITED), "g", free=0.2)
    assert found.advice.endswith("lower theirs with `gemlet set`, or choose another --device")


@pytest.mark.parametrize(
    ("least", "most", "free", "advised"),
    [
        (0.2, 0.5, 1.0, "a larger minimum, up to --min 50%, would have helped; or --priority latency"),
        (0.2, 0.5, 0.4, "a larger minimum, up to --min 40%, would have helped, no more: other groups hold the rest; "),
        (0.5, 0.5, 1.0, "a larger minimum and maximum would have helped; or --priority latency"),
        (1.0, 1.0, 1.0, None),
    ],
)
def test_no_minimum_above_the_maximum_is_proposed(least, most, free, advised):
    limits = {"min": [least] * 10, "max": [most] * 10}
    found = report(recorded(share=[0.3] * 10, **(WAITED | limits)), "g", free=free)
    assert found.advice is advised is None or found.advice.startswith(advised)


def test_what_minima_of_others_leave():
    def group(name, least, device=None):
        return GroupLimits(name=name, min=least, origin="run", owner=0, device=device, clients=1)

    held = [group("g", 0.2, 0), group("a", 0.5, 1), group("b", 0.3, 0), group("c", 0.1), group("d", 0.0)]
    assert left_for("g", held) == pytest.approx(0.6)
    assert left_for("c", held) == 0.0  # everywhere: beside all of them
    assert left_for("gone", held) == 0.0
    assert left_for("a", [group("a", 1.0)]) == 1.0


def test_memory_that_was_away_is_said():
    found = report(recorded(share=[0.3] * 10, **{"waits memory": [0.5] * 10}), "g")
    assert "5.0 s for its memory to come back" in line(found)
    assert "--resident" in found.advice


def test_the_longest_wait_decides_and_noise_is_not_said():
    found = report(recorded(share=[0.3] * 10, throttled=[0.01] * 10, **{"waits ahead": [0.01] * 10}), "g")
    assert found.advice is None
    assert line(found).endswith("waited for nothing")


def test_of_several_devices_the_time_counts_once():
    made = recorded(share=[0.5] * 4, memory=[GIB] * 4)
    other = RecordedSeries(device="GPU-2", group="g", values=made.series[0].values)
    found = report(Recorded(step_s=1, time=made.time, series=[*made.series, other]), "g")
    assert (found.seconds, found.device_s, found.memory_peak) == (4.0, 4.0, 2 * GIB)


@pytest.mark.parametrize("made", [recorded(clients=[0.0, None], share=[0.0, None]), recorded(share=[1.0])])
def test_who_had_no_program_has_no_report(made):
    assert report(made, "other") is None
    assert (report(made, "g") is None) == (len(made.time) == 2)


def test_every_reason_has_words():
    assert set(FOR) == set(REASONS)
