from __future__ import annotations

import pytest

from gemlet.cli.demo_wakeups import WakeUps


@pytest.mark.parametrize(("late", "busy"), [(0, False), (50, False), (51, True), (1000, True)])
def test_a_machine_is_busy_where_many_wake_ups_are_late(late, busy):
    wake_ups = WakeUps()
    wake_ups.all, wake_ups.late = 1000, late
    assert wake_ups.busy is busy


def test_the_note_says_how_many():
    wake_ups = WakeUps()
    wake_ups.all, wake_ups.late = 1000, 125
    assert "12% of wake-ups came more than 1 ms late" in wake_ups.note()


def test_it_counts_while_entered():
    with WakeUps() as wake_ups:
        while wake_ups.all < 3:
            pass
    count = wake_ups.all
    assert wake_ups.late <= count
    assert not wake_ups._thread.is_alive()


def test_a_machine_that_was_not_measured_is_not_busy():
    assert not WakeUps().busy
