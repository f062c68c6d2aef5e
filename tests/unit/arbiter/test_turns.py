"""The course of single turns: terms, hand-over, charging, parking, holders that do not stop, senseless events."""

import pytest

from tests.unit.arbiter.conftest import MS


def pair(scene, **parameters):
    s = scene(**parameters)
    s.group("a")
    s.group("b")
    s.client(1, "a")
    s.client(2, "b")
    return s


def test_a_lone_group_has_no_deadline(scene):
    s = pair(scene)
    s.request(1)
    assert s.deadline(1) is None
    assert s.holders[1]["idle"] == 5_000_000


def test_an_arrival_shortens_the_deadline_and_a_departure_lifts_it(scene):
    s = pair(scene)
    s.request(1)
    s.to(500)
    s.request(2)
    assert s.deadline(1) is not None
    assert s.holders[1]["idle"] == 100_000
    assert s.deadline(1) - 500 <= 100
    s.to(500.5)
    s.leave(2)
    assert s.deadline(1) is None or s.holders[1]["revoked"]


def test_a_newcomer_does_not_cut_a_turn_that_just_began(scene):
    s = pair(scene, quantum_min=2_000_000)
    s.request(1)
    s.to(1)
    s.request(2)
    assert s.deadline(1) >= 2


def test_the_window_depends_on_who_shares(scene):
    s = scene(window_alone=8_000_000, window_shared=400_000, window_latency=40_000)
    s.group("a")
    s.group("b")
    s.group("fast", priority="latency")
    s.client(1, "a", wants=True)
    assert s.holders[1]["window"] == 8_000_000
    s.client(2, "b")
    assert s.holders[1]["window"] == 400_000
    s.to(1001)
    assert s.holders[1]["window"] == 8_000_000  # the other has had nothing to do for a second
    s.client(3, "fast")
    assert s.holders[1]["window"] == 40_000


def test_the_next_is_granted_before_the_drain_and_the_tail_is_charged_to_its_owner(scene):
    s = pair(scene)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end)
    s.stop(1, tail=1.0)
    assert 2 in s.holders
    s.to(end + 2)
    s.drain(1, end + 1.5)
    assert s.used("a") == pytest.approx(end + 1.5, abs=1e-6)
    assert s.used("b") == pytest.approx(0.5, abs=1e-6)


def test_a_drain_earlier_than_estimated_is_corrected_too(scene):
    s = pair(scene)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end)
    s.stop(1, tail=2.0)
    s.to(end + 2.5)
    s.drain(1, end + 0.25)
    assert s.used("a") == pytest.approx(end + 0.25, abs=1e-6)
    assert s.used("b") == pytest.approx(2.25, abs=1e-6)


def test_a_drain_late_by_one_hardware_turn_was_the_next_ones_time(scene):
    s = pair(scene, hardware_turn=2_400_000)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end)
    s.stop(1, tail=0.4)
    s.to(end + 3)
    s.drain(1, end + 0.4 + 2.3)
    assert s.used("a") == pytest.approx(end + 0.4, abs=1e-6)
    assert s.used("b") == pytest.approx(2.6, abs=1e-6)


def test_a_drain_that_nobody_reports_ends_as_estimated(scene):
    s = pair(scene)
    s.request(1)
    s.to(10)
    s.stop(1, tail=1.0)
    s.to(50)
    assert s.used("a") == pytest.approx(11, abs=1e-6)
    s.drain(1, 49)  # very late news are better than none
    assert s.used("a") == pytest.approx(49, abs=1e-6)


def test_an_idle_token_is_parked_taken_and_taken_away(scene):
    s = pair(scene)
    s.request(1)
    s.to(5)
    s.stop(1, "idle")
    assert s.parked == {1}
    s.to(50)
    assert s.used("a") == pytest.approx(5)
    s.took(1)
    s.to(60)
    s.stop(1, "idle")
    assert s.used("a") == pytest.approx(15)
    s.request(2)
    assert s.parked == set()
    assert [kind for _, kind, _ in s.log[-2:]] == ["unpark", "grant"]
    assert 2 in s.holders


def test_a_client_that_took_its_token_in_time_holds_and_the_other_waits(scene):
    s = pair(scene)
    s.request(1)
    s.stop(1, "idle")
    s.request(2)  # unpark 1, grant 2; but 1 was faster
    s.took(1)
    assert s.holders[2]["revoked"]
    del s.holders[2]
    usage = s.usage("b")
    assert (usage["waiting"], usage["holding"]) == (1, 0)
    s.to(s.deadline(1))
    s.stop(1)
    assert 2 in s.holders


def test_taking_what_was_never_parked_is_ignored(scene):
    s = pair(scene)
    s.request(1)
    s.arbiter.took(2, 0)
    assert s.usage("b")["holding"] == 0
    assert s.arbiter.ignored == 1


def test_taking_long_after_it_was_taken_away_is_ignored(scene):
    s = pair(scene)
    s.request(1)
    s.stop(1, "idle")
    s.request(2)
    s.to(5)
    s.arbiter.took(1, s.now)
    assert s.usage("a")["holding"] == 0
    assert s.usage("b")["holding"] == 1


def test_a_holder_that_does_not_stop_no_longer_keeps_others_waiting_and_goes_on_paying(scene):
    s = pair(scene, grace=3_000_000)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end + 2.9)
    assert 2 not in s.holders
    s.to(end + 3.1)
    assert 2 in s.holders
    assert s.usage("a")["reason"] == "was told to stop and still runs"
    at_work(s, 7, 0.0)
    s.stop(1)
    assert s.used("a") == pytest.approx(end + 10, abs=1)


def at_work(s, ms, part):
    """2 works on the device for that part of each of so many ms, and says so."""
    begin = s.ms
    for each in range(1, ms + 1):
        s.to(begin + each)
        s.progress(2, part * each)
        s.arbiter.tick(s.now)


def late(scene):
    """1 is 3 ms late to stop, and 2 runs beside it."""
    s = pair(scene, grace=3_000_000)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end + 3.001)
    assert 2 in s.holders
    return s, end


def late_beside(scene, part):
    """1 is 103 ms late to stop; of the last 100, 2 worked for that part on the device."""
    s, end = late(scene)
    at_work(s, 100, part)
    return s, end


@pytest.mark.parametrize("part", [0.0, 0.4, 0.9, 1.0])
def test_one_that_does_not_stop_does_not_pay_for_what_others_do(scene, part):
    s, end = late_beside(scene, part)
    its_own = end + 3 + 100 * (1 - part)  # for 3 ms the other one had to wait
    assert s.used("a") == pytest.approx(its_own, abs=2.5), "while it is late"
    s.stop(1)
    assert s.used("a") == pytest.approx(its_own, abs=2.5)
    assert s.used("a") + s.used("b") == pytest.approx(end + 103, abs=1.1)


@pytest.mark.parametrize("told", [True, False])
def test_beside_one_that_does_not_stop_the_hardware_slices(scene, told):
    """That is so until work is told: of a kernel, when it is complete."""
    s, end = late(scene)
    s.to(s.ms + 100)
    if told:
        s.progress(2, 50, launches=1)
    s.stop(1)
    assert s.used("a") == pytest.approx(end + 53, abs=0.01)
    assert s.used("b") == pytest.approx(50, abs=0.01)


def test_work_that_others_claim_is_no_more_than_time(scene):
    s, end = late_beside(scene, 1e4)
    s.stop(1)
    assert s.used("a") == pytest.approx(end + 3, abs=1.5)
    assert s.used("b") == pytest.approx(100, abs=1.5)


def test_a_drain_that_is_told_late_does_not_cost_what_others_did_meanwhile(scene):
    """The host of 1 has no time to look: kernels that were thought to need 1 ms were done, or were not."""
    s = pair(scene)
    s.request(1)
    s.request(2)
    end = s.deadline(1)
    s.to(end)
    s.stop(1, tail=1)
    at_work(s, 50, 0.6)
    s.drain(1)
    assert s.used("a") == pytest.approx(end + 20, abs=3)  # as long as its host was thought to be a little late
    assert s.used("a") + s.used("b") == pytest.approx(end + 50, abs=0.01)


def test_what_one_did_that_is_gone_counts_for_those_who_are_late(scene):
    s, end = late_beside(scene, 0.9)
    s.leave(2)
    s.arbiter.tick(s.now)
    assert s.used("a") == pytest.approx(end + 13, abs=2.5)


def test_death_of_the_holder_hands_over_at_once(scene):
    s = pair(scene)
    s.request(1)
    s.request(2)
    s.to(1)
    s.leave(1)
    assert 2 in s.holders
    assert s.used("a") == pytest.approx(1)
    assert s.deadline(2) is None


@pytest.mark.parametrize("state", ["idle", "waiting", "holding", "draining", "parked", "overdue"])
def test_a_client_may_go_in_any_state(scene, state):
    s = pair(scene)
    if state in {"holding", "draining", "parked", "overdue"}:
        s.request(1)
    if state == "waiting":
        s.request(2)
        s.request(1)
    if state == "draining":
        s.stop(1, tail=1.0)
    if state == "parked":
        s.stop(1, "idle")
    if state == "overdue":
        s.request(2)
        s.to(200)
    s.leave(1)
    s.to(300)
    s.leave(2)
    s.arbiter.remove_group(s.groups["a"], s.now)
    s.group("a")  # the slot is free again
    s.client(7, "a", wants=True)
    assert 7 in s.holders


def test_senseless_events_are_ignored_and_counted(scene):
    s = pair(scene)
    s.request(1)
    a = s.arbiter
    before = a.ignored
    a.request(1, 0)  # holds already
    a.stopped(2, "deadline", 5, 0)  # holds nothing
    a.drained(2, 0, 0)  # not counted: a polite client says so even if its turn was over when it stopped
    a.request(99, 0)
    a.remove_client(99, 0)
    a.add_client(1, s.groups["b"], 0)  # twice
    a.add_client(5, 4711, 0)
    a.took(1, 0)
    assert a.ignored == before + 7
    assert s.usage("a")["holding"] == 1
    a.request(2, 10)
    a.tick(-5)  # time does not run backwards
    assert s.usage("b")["waiting"] == 1


def test_an_absurd_tail_does_not_make_others_run_for_nothing(scene):
    s = pair(scene, window_alone=8_000_000)
    s.request(1)
    s.request(2)
    s.to(s.deadline(1))
    start = s.ms
    s.stop(1, tail=3_600_000.0)
    at_work(s, 20, 1.0)
    assert s.used("b") == pytest.approx(20, abs=2)
    assert s.used("a") - start == pytest.approx(8), "what may be in flight at most"


def test_slices_that_fit_hold_together(scene):
    s = scene()
    for name, sm in (("a", 0.5), ("b", 0.3), ("c", 0.2), ("d", 0.5)):
        s.group(name, sm=sm)
    for number, name in enumerate("abcd"):
        s.client(number, name, wants=True, mps=True)
    assert set(s.holders) == {0, 1, 2}
    s.to(s.deadline(0))
    s.stop(0)
    assert set(s.holders) == {1, 2, 3}


def test_a_wide_slice_is_not_starved_by_narrow_ones(scene):
    s = scene()
    s.group("wide")
    s.group("left", sm=0.5)
    s.group("right", sm=0.5)
    s.client(1, "left", wants=True, mps=True)
    s.client(2, "right", wants=True, mps=True)
    s.client(3, "wide", wants=True, mps=True)
    share = {1: 0, 2: 0, 3: 0}
    while s.ms < 3000:
        client, holder = min(s.holders.items(), key=lambda item: item[1]["deadline"])
        s.to_ns(max(s.now, holder["deadline"]))
        share[client] += s.now - holder["granted"]
        s.stop(client)
        s.request(client)
    assert share[3] / s.now > 0.4
    assert share[1] / s.now > 0.4


def test_clients_of_one_group_take_turns(scene):
    s = scene()
    s.group("a")
    s.group("b")
    for number in range(3):
        s.client(number, "a", wants=True)
    s.client(9, "b", wants=True)
    used = dict.fromkeys([0, 1, 2, 9], 0.0)
    while s.ms < 6000:
        (client,) = s.holders
        start = s.ms
        s.to(s.deadline(client))
        used[client] += s.ms - start
        s.stop(client)
        s.request(client)
    assert used[9] / s.ms == pytest.approx(0.5, abs=0.01)
    for number in range(3):
        assert used[number] / s.ms == pytest.approx(1 / 6, abs=0.01)


def test_a_group_alone_shares_among_its_clients(scene):
    s = scene()
    s.group("a")
    s.client(1, "a", wants=True)
    s.client(2, "a", wants=True)
    s.to(s.deadline(1))
    s.stop(1)
    s.request(1)
    assert set(s.holders) == {2}
    assert s.deadline(2) - s.ms < 101


@pytest.mark.parametrize(
    "spec",
    [
        {"min": 0.5, "max": 0.4},
        {"min": -0.1},
        {"max": 1.1},
        {"min": float("nan")},
        {"max": float("nan")},
        {"weight": 0.0},
        {"weight": float("inf")},
        {"sm": 0.0},
        {"sm": float("nan")},
        {"priority": "urgent"},
    ],
)
def test_senseless_groups_are_refused(scene, spec):
    with pytest.raises(ValueError, match=r"must be|above max|unknown"):
        scene().group("a", **spec)


def test_unknown_policies_and_parameters_are_refused(scene):
    with pytest.raises(ValueError, match="there are: fair, gemini, fifo"):
        scene("lottery")
    with pytest.raises(ValueError, match="quantum_mni"):
        scene("fair", quantum_mni=1)
    with pytest.raises(ValueError, match="switch_loss"):
        scene("fair", switch_loss=0.0)


def test_a_group_with_clients_stays(scene):
    s = pair(scene)
    with pytest.raises(ValueError, match="still has clients"):
        s.arbiter.remove_group(s.groups["a"], 0)


@pytest.mark.parametrize("most", [5e-324, 1e-300, 1e-15, 1e-12, 1e-9])
@pytest.mark.parametrize("priority", ["normal", "latency"])
def test_a_maximum_of_next_to_nothing_lets_the_arbiter_rest(scene, most, priority):
    s = scene()
    s.group("a", max=most, priority=priority)
    s.group("b")
    s.client(1, "a", wants=True)
    s.client(2, "b", wants=True)
    for _ in range(400):  # beyond the second in which what it used counts
        s.to(s.ms + 5)
        for client in list(s.holders):
            s.stop(client)
            s.request(client)
    assert s.used("a") <= 5, "a turn, and no other"


def test_reasons_are_for_people(scene):
    s = pair(scene)
    s.group("never", max=0.0)
    s.client(3, "never", wants=True)
    assert s.usage("never")["reason"] == "its maximum is 0: it never runs"
    assert s.usage("a")["reason"] == "idle"
    s.request(1)
    s.request(2)
    assert s.usage("a")["reason"] == "runs"
    left = -(-s.deadline(1) // 1)
    assert s.usage("b")["reason"] == f"waits: 'a' holds the token for {left:.0f} ms more"


def test_fifo_serves_in_order_of_arrival(scene):
    s = scene("fifo", gemini_base_quota=50_000_000)
    s.group("a")
    s.group("b")
    for number, group in ((1, "a"), (2, "b"), (3, "a")):
        s.client(number, group, wants=True)
        s.to(number)
    order = []
    for _ in range(6):
        (client,) = s.holders
        order.append(client)
        assert s.deadline(client) == pytest.approx(s.holders[client]["granted"] / 1e6 + 50)
        s.to(s.deadline(client))
        s.stop(client)
        s.request(client)
    assert order == [1, 2, 3, 1, 2, 3]


def busy_until(s, end):
    """Everybody has work always and stops when told to."""
    while s.ms < end:
        s.to(s.ms + 1)
        for client in [n for n, h in s.holders.items() if h["deadline"] <= s.now]:
            s.stop(client)
            s.request(client)


def throttled(s, group):
    return s.usage(group)["throttled"] / 1e6


def test_time_that_a_maximum_takes_from_work_is_counted(scene):
    s = scene()
    s.group("a", max=0.25)
    s.group("b")
    s.client(1, "a", wants=True)
    busy_until(s, 2000)
    assert 1300 < throttled(s, "a") < 1600, "three quarters of the time"
    s.client(2, "b", wants=True)
    before = throttled(s, "a")
    busy_until(s, 4000)
    assert throttled(s, "b") == 0, "it waits for the other one, which is not what a maximum does"
    assert throttled(s, "a") - before < 1000, "and now the other one is what the first mostly waits for"
    s.leave(1)
    before = throttled(s, "a")
    s.to(5000)
    assert throttled(s, "a") == before, "nothing is taken from who has no work"


def test_the_time_is_counted_up_to_now(scene):
    s = scene()
    s.group("a", max=0.0)
    s.client(1, "a", wants=True)
    s.now += 5_000_000  # no event
    assert s.usage("a")["throttled"] == 5_000_000


@pytest.mark.parametrize("reason", ["deadline", "idle"])
@pytest.mark.parametrize("late", [1, 4, 2000])
def test_a_turn_that_was_granted_to_a_stopped_process_costs_what_kept_others_waiting(scene, reason, late):
    s = scene()
    for name, number in (("frozen", 1), ("other", 2)):
        s.group(name)
        s.client(number, name, wants=True)
    end = s.deadline(1)
    s.to(end + late)
    assert set(s.holders) == ({1, 2} if late > 3 else {1})
    s.stop(1, reason, unused=True)
    pays_until = end if late > 3 else end + late
    assert s.usage("frozen")["used"] == pytest.approx(pays_until * MS, abs=0.1 * MS)
    s.request(1)
    s.to(s.deadline(2))
    s.stop(2)
    assert set(s.holders) == {1}
