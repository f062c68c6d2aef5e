"""Turns of jobs whose ranks wait for each other on several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemlet._native import Arbiter
from gemlet.simulate.workload import SECOND, DeviceModel
from tests.unit.arbiter.gang_host import DDP, DEVICE, EAGER, FSDP, MS, SATURATING, TENSOR, TWO_CYCLES, US, Jobs, sliced

BOTH = (0, 1)
KINDS = pytest.mark.parametrize("kind", [DDP, FSDP, TENSOR], ids=["ddp", "fsdp", "tensor"])


@KINDS
def test_turns_that_each_device_gives_alone_are_far_slower_than_slicing(kind):
    """What gangs are for. Two H200s: 44 + 44 steps a second, under time slicing 166 + 166, alone 352."""
    jobs = (kind, BOTH), (kind, BOTH)
    assert Jobs(*jobs, gang="off").run().total() < 0.5
    assert sliced(*jobs).total() > 0.85


@KINDS
def test_two_gangs_lose_next_to_nothing_and_never_stand_still_for_long(kind):
    jobs = Jobs((kind, BOTH), (kind, BOTH)).run()
    assert jobs.total() >= 0.97
    for number in range(2):
        assert jobs.speed(number) == pytest.approx(0.5, abs=0.02)
        assert jobs.longest_stall(number) <= TWO_CYCLES


@pytest.mark.parametrize("host", [5, 20])
def test_gangs_that_are_bound_by_their_hosts_share_as_time_slicing_has_it(host):
    """Ranks that wait for a peer whose host is late are not held up by their neighbours."""
    eager = replace(EAGER, host=host * MS)
    jobs = (eager, BOTH), (eager, BOTH)
    assert Jobs(*jobs, seconds=4).run().total() >= 0.97 * sliced(*jobs, seconds=4).total()


@KINDS
def test_minima_of_gangs_hold_in_every_second(kind):
    jobs = Jobs((kind, BOTH, {"min": 0.75}), (kind, BOTH, {"min": 0.25})).run()
    for speed in jobs.speeds(0):
        assert speed == pytest.approx(0.75, abs=0.02)
    for speed in jobs.speeds(1):
        assert speed == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("least", [0.3, 0.5])
def test_a_minimum_holds_for_a_gang_that_waits_for_its_hosts(least):
    """Each of its pauses ended its slot, and it had 0.22 whatever its minimum."""
    jobs = Jobs((TENSOR, BOTH), (TENSOR, BOTH), (EAGER, BOTH, {"min": least}), seconds=4).run()
    assert min(jobs.speeds(2)) >= least - 0.02
    for number in range(2):
        assert jobs.speed(number) >= (1 - least) / 2 - 0.05


def test_weights_of_gangs():
    jobs = Jobs((FSDP, BOTH, {"weight": 2.0}), (FSDP, BOTH)).run()
    assert jobs.speed(0) == pytest.approx(2 / 3, abs=0.02)
    assert jobs.speed(1) == pytest.approx(1 / 3, abs=0.02)


def test_a_maximum_of_a_gang_binds_on_all_its_devices_at_the_same_time():
    jobs = Jobs((DDP, BOTH, {"max": 0.5})).run()
    for speed in jobs.speeds(0):
        assert speed == pytest.approx(0.5, abs=0.02)


def test_gangs_keep_what_they_are_owed_while_other_devices_come_and_go():
    """Programs name devices, and have some forgotten that they made up, as often as they like."""
    jobs = Jobs((DDP, BOTH, {"min": 0.25}), (DDP, BOTH, {"min": 0.75}))
    gangs = jobs.host.gangs

    def come_and_go(at):
        devices = [Arbiter("fair"), Arbiter("fair")]
        for device in devices:
            gangs.add(device)
        gangs.settle(at)
        for device in devices:
            gangs.remove(device)
            gangs.settle(at)
        jobs.host.at(at + 5 * MS, lambda: come_and_go(at + 5 * MS))

    first = Arbiter("fair")
    for engine in jobs.host.engines:
        gangs.remove(engine.arbiter)
    for device in (first, *(engine.arbiter for engine in jobs.host.engines)):
        gangs.add(device)
    jobs.host.at(0, lambda: come_and_go(0))
    jobs.host.at(SECOND, lambda: gangs.remove(first))
    jobs.run()
    for number, least in enumerate((0.25, 0.75)):
        assert jobs.speed(number) == pytest.approx(least, abs=0.02)


def test_gangs_that_cross_have_a_third_each():
    jobs = Jobs((DDP, (0, 1)), (FSDP, (1, 2)), (DDP, (0, 2)), devices=3, seconds=5).run()
    assert jobs.total() >= 0.97
    for number in range(3):
        assert jobs.speed(number) == pytest.approx(1 / 3, abs=0.05)
        assert jobs.longest_stall(number) <= TWO_CYCLES


def test_a_gang_that_waits_for_its_hosts_needs_no_slots_beside_gangs_that_do():
    """Beside each of the others it shares well; it was held to slots, for once it had been in their way."""
    jobs = (TENSOR, (0, 2)), (TENSOR, (1, 2)), (EAGER, (1, 0))
    together, by_slices = Jobs(*jobs, devices=3, seconds=4).run(), sliced(*jobs, devices=3, seconds=4)
    for number in range(2):
        assert together.speed(number) >= by_slices.speed(number)
    assert together.speed(2) >= 0.5


def test_gangs_of_two_and_four_devices():
    everywhere = (0, 1, 2, 3)
    jobs = Jobs((DDP, everywhere), (FSDP, everywhere), (FSDP, (0, 1)), (FSDP, (2, 3)), devices=4).run()
    for number in range(4):
        assert jobs.speed(number) == pytest.approx(1 / 3, abs=0.03)


def test_the_next_gang_begins_when_the_ranks_of_the_last_one_have_drained():
    """A rank stops before the end of its slot if what it would submit next, here one graph a step, ends too late."""
    graph = replace(
        TENSOR, kernels=1, kernel=1650 * US, gap=3 * US, layers=1, collective=50 * US, host=30 * US, uneven=1.0
    )
    jobs = Jobs((graph, BOTH), (graph, BOTH)).run()
    assert jobs.total() >= 0.994


def test_single_programs_fill_what_a_gang_leaves():
    jobs = Jobs((DDP, BOTH), (SATURATING, (0,)), (SATURATING, (1,))).run()
    for device in BOTH:
        assert jobs.speed(0) + jobs.speed(1 + device) >= 0.96
    for number in range(3):
        assert jobs.speed(number) == pytest.approx(0.5, abs=0.05)
        assert jobs.longest_stall(number) <= TWO_CYCLES


def test_a_single_program_does_not_wait_for_gangs_that_pause():
    """Each pause has the rest of the cycle planned anew, and the end of the cycle is what gangs leave it."""
    jobs = (SATURATING, (1,)), (EAGER, (1, 0)), (EAGER, (2, 1)), (FSDP, (0, 2, 1))
    together = Jobs(*jobs, devices=3, seconds=4).run()
    assert together.longest_stall(0) <= 150 * MS  # a cycle, and a slot that has begun
    assert min(together.speed(number) for number in range(4)) >= 0.3


def test_a_gang_beside_nobody_has_all_of_its_devices():
    jobs = Jobs((DDP, (0, 1)), (DDP, (2, 3)), devices=4).run()
    for number in range(2):
        assert jobs.speed(number) >= 0.99


def test_gangs_that_fit_beside_each_other_share_openly():
    light = replace(DDP, kernels=5, host=4 * MS)
    jobs = Jobs((light, BOTH), (replace(light, host=5 * MS), BOTH)).run()
    by_slices = sliced((light, BOTH), (replace(light, host=5 * MS), BOTH))
    for number in range(2):
        assert jobs.speed(number) >= 0.97 * by_slices.speed(number)


# A generator whose ranks launch one graph a step, on devices whose slices meet, as those of two H100s often do.
GRAPH = replace(TENSOR, kernels=1, kernel=1800 * US, gap=3 * US, layers=1, collective=50 * US, host=90 * US)
FAST = DeviceModel(switch=20 * US)


def test_gangs_that_slicing_serves_as_well_as_turns_would_share_openly():
    """On two H100s two of these do 1.006 of one alone by slicing, and 0.91 to 0.95 in turns."""
    jobs = (GRAPH, BOTH), (GRAPH, BOTH)
    together = Jobs(*jobs, device=FAST, seconds=4).run()
    assert together.total() >= 0.99 * sliced(*jobs, device=FAST, seconds=4).total()
    for number in range(2):
        assert together.longest_stall(number) == 0


def test_gangs_that_slicing_serves_well_but_not_by_their_shares_take_turns():
    jobs = Jobs((GRAPH, BOTH, {"min": 0.75}), (GRAPH, BOTH, {"min": 0.25}), device=FAST, seconds=4).run()
    for speed in jobs.speeds(0):
        assert speed >= 0.7


@pytest.mark.parametrize(("host", "device"), [(200, DEVICE), (250, FAST)])
def test_ranks_that_slices_would_keep_below_their_minimum_are_not_tried(host, device):
    """Slices give each of two about half. On two H100s trials of that cost the one of 75 % up to 0.16 in a second."""
    graph = replace(GRAPH, host=host * US)
    jobs = Jobs((graph, BOTH, {"min": 0.75}), (graph, BOTH, {"min": 0.25}), device=device, seconds=3.5).run()
    for speed in jobs.speeds(0):
        assert speed == pytest.approx(0.75, abs=0.02)
    for speed in jobs.speeds(1):
        assert speed == pytest.approx(0.25, abs=0.02)


def test_a_tensor_parallel_service_goes_before_a_training():
    """Nobody else was to have its slot, so its pauses of 20 ms ended only after 5, and the training had 0.71."""
    service = replace(TENSOR, host=20 * MS)
    terms = {"priority": "latency"}, {"priority": "best-effort"}
    jobs = Jobs((service, BOTH, terms[0]), (DDP, BOTH, terms[1])).run()
    assert jobs.speed(0) >= 0.9
    left = 1 - jobs.outcome.work(0, SECOND) / (len(BOTH) * 2 * SECOND)
    assert jobs.speed(1) >= 0.82 * left


def test_a_long_request_of_a_service_is_not_interrupted_for_a_best_effort_training():
    """What the training had been left in pauses was owed to it when a request came: 28 ms in the middle of it."""
    request = 560 * (TENSOR.kernels * TENSOR.kernel + TENSOR.collective)
    service = replace(TENSOR, layers=560, host=request)
    terms = {"priority": "latency", "min": 0.3}, {"priority": "best-effort"}
    jobs = Jobs((service, BOTH, terms[0]), (DDP, BOTH, terms[1]), seconds=4).run()
    assert jobs.speed(0) >= 0.98
    left = 1 - jobs.outcome.work(0, SECOND) / (len(BOTH) * 3 * SECOND)
    assert jobs.speed(1) >= 0.97 * left


@pytest.mark.parametrize("gone", ["killed", "stopped"])
def test_a_rank_that_is_gone_stalls_its_own_job_alone(gone):
    jobs = Jobs((DDP, BOTH), (DDP, BOTH), seconds=4)
    victim = jobs.host.client(0, 1)
    jobs.host.at(SECOND + 33 * MS, lambda: jobs.host.kill(0, 1) if gone == "killed" else victim.freeze())
    jobs.run()
    assert jobs.speed(0, 2 * SECOND) < 0.01
    # Its peer waits on the device for ever, in the slices that the hardware gives it.
    assert jobs.speed(1, 2 * SECOND) >= 0.2
    assert jobs.longest_stall(1) <= TWO_CYCLES


def test_a_gang_of_the_class_latency_leaves_others_their_minima():
    """Each time that it came it ended the slot of another, which had the next one a cycle later: 0.04."""
    single = [(SATURATING, (device,)) for device in BOTH]
    jobs = Jobs((TENSOR, BOTH, {"min": 0.5}), (DDP, BOTH, {"priority": "latency"}), *single, seconds=3.5).run()
    assert min(jobs.speeds(0)) >= 0.48
    for number in range(1, 4):
        assert jobs.speed(number) >= 0.24
        assert jobs.longest_stall(number) <= TWO_CYCLES


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_a_gang_of_the_class_latency_that_never_pauses_has_slots_like_others(least):
    """It ended the other's slot each time that it was not ahead of its share, which cost it part of its own: 0.36."""
    service = {"priority": "latency", "min": least}
    jobs = Jobs((TENSOR, BOTH, {"min": 0.5}), (FSDP, BOTH, service), seconds=3.5).run()
    for number in range(2):
        assert min(jobs.speeds(number)) >= 0.48
