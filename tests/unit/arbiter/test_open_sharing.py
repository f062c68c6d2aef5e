"""Which clients share freely and which take turns, on the virtual device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemlet.simulate.workload import SECOND, DeviceModel, ProgramSpec
from tests.unit.arbiter.open_device import LAUNCH_BOUND, MS, SATURATING, US, Shared


@pytest.mark.parametrize("count", [2, 4, 8])
def test_programs_that_are_bound_by_their_hosts_share_freely(count):
    programs = [replace(LAUNCH_BOUND, host=(300 + 17 * number) * US) for number in range(count)]
    shared = Shared(*programs, seconds=4)
    for number in range(count):
        assert not shared.engagements(number)
    assert shared.total() >= 0.97 * shared.total_sliced()


@pytest.mark.parametrize(("count", "prefill"), [(2, 5), (2, 30), (4, 10), (4, 30), (8, 5), (8, 10)])
def test_generators_that_all_begin_with_much_work_at_once_share_freely(count, prefill):
    """As on an H200: a step of 20 ms uses the device for 3 ms, and all hosts wait for their first step together."""
    step = ProgramSpec(kind="launch-bound", kernels=300, kernel=10 * US, gap=60 * US, host=400 * US, steps=40)
    programs = [replace(step, prefill=prefill * MS, host=(400 + 17 * number) * US) for number in range(count)]
    shared = Shared(*programs, seconds=4)
    assert shared.total(start=0) >= 0.97 * shared.total_sliced(start=0)
    for number in range(count):
        assert min(shared.speeds(number, window=500 * MS)) >= 0.9 * min(shared.sliced_speeds(number, 500 * MS))


@pytest.mark.parametrize("minima", [(0.75, 0.25), (0.5, 0.5), (0.9, 0.1)])
def test_programs_that_saturate_take_turns_within_a_tenth_of_a_second(minima):
    shared = Shared(*(({"min": least}, SATURATING) for least in minima), seconds=4)
    for number, least in enumerate(minima):
        changes = shared.exclusive(number)
        assert [exclusive for _, exclusive in changes] == [False, True]
        assert changes[1][0] <= 100 * MS
        for share in shared.speeds(number, start=0):
            assert share == pytest.approx(least, abs=0.02)
    assert shared.total(start=100 * MS) >= 0.985


@pytest.mark.parametrize("host", [10, 40, 60, 80, 130, 160, 200, 300])
@pytest.mark.parametrize("longer", [1, 8, 14])
def test_programs_that_pause_after_each_step_do_what_is_better_for_both_and_stay_at_it(host, longer):
    """Steps of 1.3 ms as of a small model in a graph: with pauses of less than 100 us turns are better, then slicing.

    Close to that neither is, and they may change their minds.
    """
    step = ProgramSpec(kind="launch-bound", kernels=1, kernel=1300 * US, gap=5 * US, host=host * US)
    shared = Shared(step, replace(step, host=(host + longer) * US), seconds=4)
    better = max(shared.total_sliced(), 0.99)
    assert shared.total() >= 0.99 * better
    if not 80 < host < 300:
        for number in range(2):
            assert shared.engagements(number) == (host <= 80)


def test_a_launch_bound_program_beside_one_that_saturates():
    shared = Shared(LAUNCH_BOUND, SATURATING)
    for number in range(2):
        assert min(shared.speeds(number)) >= 0.48


@pytest.mark.parametrize("kernel", [50, 200, 1000])
@pytest.mark.parametrize("kernels", [1, 5, 300])
def test_whatever_its_steps_are_a_launch_bound_program_has_its_half(kernels, kernel):
    program = replace(LAUNCH_BOUND, kernels=kernels)
    shared = Shared(program, replace(SATURATING, kernel=kernel * US), seconds=4)
    for number in range(2):
        assert min(shared.speeds(number)) >= 0.48


def test_two_go_on_sharing_while_a_third_takes_turns():
    """Each has its third, and the two that leave the device idle have more than a third of it together."""
    shared = Shared(LAUNCH_BOUND, LAUNCH_BOUND, SATURATING)
    for number in range(3):
        assert min(shared.speeds(number)) >= 0.95 / 3
    for number in range(2):
        assert not shared.engagements(number)
    assert shared.total() >= 0.97 * shared.total_sliced()


@pytest.mark.parametrize("minima", [(0.75, 0.25), (0.9, 0.1)])
def test_minima_of_launch_bound_programs(minima):
    shared = Shared(*(({"min": least}, LAUNCH_BOUND) for least in minima), seconds=4)
    for number, least in enumerate(minima):
        assert min(shared.speeds(number)) >= least - 0.02
    assert shared.total() >= 0.97 * shared.total_sliced()


def test_minima_of_launch_bound_programs_that_do_not_fit_together():
    program = replace(LAUNCH_BOUND, kernel=30 * US)
    shared = Shared(({"min": 0.75}, program), ({"min": 0.25}, program), seconds=4)
    assert min(shared.speeds(0)) >= 0.75 - 0.05
    assert min(shared.speeds(1)) >= 0.25 - 0.05
    assert shared.total() >= 0.97 * min(1.0, shared.total_sliced())


def test_a_program_that_changes_has_its_promise_soon_after_each_change():
    changing = replace(LAUNCH_BOUND, kind="changing", every=5 * SECOND, kernel=200 * US, gap=210 * US, kernels=10)
    for other in (SATURATING, LAUNCH_BOUND):
        shared = Shared(changing, other, seconds=20)
        for number in range(2):
            windows = shared.speeds(number, window=100 * MS, start=0)
            held = [speed >= 0.45 for speed in windows]
            for index in range(len(windows)):
                if index % 50 >= 3:  # a window may fall short while the two are tried together; the next one does not
                    assert held[index] or held[index - 1], (number, index, windows[index])
            assert sum(not h for h in held) <= len(held) / 20 + 3 * len(held) / 50


@pytest.mark.parametrize("most", [0.5, 0.25])
def test_a_maximum_counts_the_time_on_the_fraction_that_a_group_has(most):
    """Both fractions fit the device, so neither pays for what the other uses."""
    shared = Shared(({"sm": 0.5, "max": most}, SATURATING), ({"sm": 0.5}, SATURATING), device=DeviceModel(mps=True))
    for part in shared.speeds(0, start=2 * SECOND):
        assert part == pytest.approx(0.5 * most, abs=0.01)  # of its speed on the whole device
    assert shared.speed(1) >= 0.97 * 0.5


@pytest.mark.parametrize("lie", ["", "silent", "awaited"])
def test_what_one_that_shares_left_in_its_queue_does_not_meet_each_pause_of_another(lie):
    """With 8 ms of it after each pause, one with a minimum of 80 % had 48 % beside one that told nothing of itself."""
    pausing = ProgramSpec(kind="launch-bound", kernels=64, kernel=13 * US, gap=37 * US, host=3300 * US)
    shared = Shared(({"min": 0.8}, pausing), ProgramSpec(kernel=33 * US, lie=lie), seconds=4)
    assert min(shared.speeds(0)) >= 0.8


def test_what_others_leave_in_their_queues_says_nothing_of_a_programs_launches():
    """It drained as turns began, and the program that seemed to be alone then seemed to take 32 us for each launch. So
    it seemed to lose nothing beside others ever after, and had 52 % instead of its 80."""
    steps = ProgramSpec(kind="launch-bound", kernel=12 * US, kernels=244, gap=27 * US, host=27 * US)
    bursts = ProgramSpec(kind="bursty", kernel=80 * US, work=6816 * US, think=26 * US)
    rest = ProgramSpec(kind="bursty", kernel=742 * US, work=9673 * US, think=478 * US)
    others = [ProgramSpec(kernel=1320 * US), bursts, ({"priority": "best-effort"}, rest)]
    shared = Shared(({"min": 0.8}, steps), *others, seconds=5)
    assert min(shared.speeds(0, start=2 * SECOND)) >= 0.9 * 0.8


@pytest.mark.parametrize("kernel", [3, 6, 12])
@pytest.mark.parametrize("count", [1, 2])
def test_kernels_as_short_as_a_launch_have_their_minimum_beside_one_that_was_there_before(kernel, count):
    """What launches take was presumed until the program was alone, so it seemed to lose nothing, and never was: 60 %
    beside one of these, and 38 beside two, for ever."""
    bursts = ProgramSpec(kind="bursty", kernel=100 * US, work=6 * MS, think=6 * MS)
    comes = ProgramSpec(kernel=kernel * US, arrive=SECOND // 10)
    shared = Shared(({"min": 0.8}, comes), *[bursts] * count, seconds=4)
    assert min(shared.speeds(0)) >= 0.85 * 0.8


@pytest.mark.parametrize(("least", "most", "count"), [(0.14, 0.14, 3), (0.14, 0.182, 3), (0.1, 0.13, 5)])
def test_a_minimum_holds_for_who_has_a_maximum_near_it(least, most, count):
    """Beside those that took turns it was slow, and what it had of the time was all that its maximum allows: that it
    waited for that was no loss, so it got 0.5 to 0.7 of its minimum, for ever."""
    waits = ProgramSpec(kind="launch-bound", kernel=15 * US, kernels=91, gap=25 * US, host=737 * US)
    others = [ProgramSpec(kernel=(100 + 50 * number) * US) for number in range(count)]
    shared = Shared(({"min": least, "max": most}, waits), *others, seconds=7)
    assert min(shared.speeds(0)) >= 0.85 * least
    assert max(shared.outcome.work(0, s * SECOND, (s + 1) * SECOND) for s in range(1, 7)) <= (most + 0.015) * SECOND


def test_a_maximum_holds_beside_one_of_which_little_is_known():
    """It runs beside the other for too short to be known, and was thought to use half of the device. So the other paid
    for the other half only, and had a fourth more than its maximum."""
    hardly = ProgramSpec(kind="launch-bound", kernel=5600, kernels=69, gap=92 * US, host=68 * US)
    shared = Shared(({"max": 0.2}, ProgramSpec(kernel=39 * US)), hardly, seconds=5)
    works = [shared.outcome.work(0, s * SECOND, (s + 1) * SECOND) / SECOND for s in range(1, 5)]
    assert works == pytest.approx([0.2] * 4, abs=0.015)
    assert shared.speed(1) >= 0.95


@pytest.mark.parametrize("kernel", [5 * MS, 20 * MS])
@pytest.mark.parametrize("beside", [LAUNCH_BOUND, replace(LAUNCH_BOUND, kernels=273, kernel=2800, gap=48 * US)])
def test_a_maximum_holds_for_one_of_which_little_is_known(kernel, beside):
    """Its turns are over before a kernel is, so it was thought to use half of the device: it had 1.4 to 1.65 of its
    maximum."""
    shared = Shared(({"max": 0.1}, ProgramSpec(kernel=kernel)), beside, seconds=6)
    assert shared.outcome.work(0, SECOND) / (5 * SECOND) == pytest.approx(0.1, abs=0.02)
    assert shared.speed(1) >= 0.9
