"""Several models by turns, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.planner.cycle import Turn, fit

# 10 ms for one request, 1 ms more for each further one: squishy, as Nexus calls it.
ROW = [0.0, *(9.0 + b for b in range(1, 65))]


def test_two_models_share_by_turns() -> None:
    cycle = fit([Turn(ROW, 100, 100), Turn(ROW, 200, 120)])
    assert cycle is not None
    # In d ms there come 0.1 d and 0.2 d requests; d + L(0.1 d) <= 100 allows d up to 82.
    assert 70 < cycle.duty_ms <= 82.8
    assert cycle.batches == (-(-cycle.duty_ms // 10), -(-cycle.duty_ms // 5))
    assert cycle.latencies == tuple(9.0 + b for b in cycle.batches)
    assert cycle.occupancy < 1


def test_three_times_the_fixed_cost_does_not_fit_into_a_short_cycle() -> None:
    assert fit([Turn(ROW, 10, 40)] * 2) is not None
    # Three turns of at least 10 ms in a cycle of at most 30 leave 10 of the 40 ms: just.
    assert fit([Turn(ROW, 10, 40)] * 3) is not None
    assert fit([Turn(ROW, 10, 40)] * 4) is None


def test_neighbours_count() -> None:
    assert fit([Turn(ROW, 10, 40, alpha=1.5)] * 3) is None


def test_an_slo_below_twice_the_latency() -> None:
    assert fit([Turn(ROW, 1, 19.9)]) is None


def test_a_batch_that_was_never_measured() -> None:
    assert fit([Turn([0.0, 0.001], 100_000, 100)]) is None


turns = st.lists(
    st.builds(Turn, st.just(ROW), st.floats(0.1, 500), st.floats(1, 500), st.floats(1, 2)), min_size=1, max_size=4
)


@given(turns)
def test_a_cycle_keeps_what_it_promises(wanted: list[Turn]) -> None:
    cycle = fit(wanted)
    if cycle is None:
        return
    assert sum(cycle.latencies) <= cycle.duty_ms * (1 + 1e-9)
    for turn, batch, latency in zip(wanted, cycle.batches, cycle.latencies, strict=True):
        assert latency == pytest.approx(ROW[batch] * turn.alpha)
        assert cycle.duty_ms + latency <= turn.slo_ms * (1 + 1e-9)
        assert batch * 1000 / cycle.duty_ms >= turn.rate * (1 - 1e-9)  # what comes in a cycle is served in it
