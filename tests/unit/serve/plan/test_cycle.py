"""Several models by turns, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.plan.search.cycle import Turn, fit
from gemlet.serve.profiles.surface import Surface

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


def measured(**latencies: float) -> list[float]:
    """A row through (batch, ms) given as b4=50.0, as slow as the smallest batch below it."""
    surface = Surface([(1.0, int(name[1:]), ms) for name, ms in latencies.items()])
    return surface.row(1.0)


def test_the_example_of_the_nexus_paper() -> None:
    # Section 4: A at 64/s within 200 ms and B at 32/s within 250 ms share a device in a cycle of 125 ms, filled to the
    # brim by a batch of 8 and one of 4; C, like B but a little slower, cannot take B's place.
    a = Turn(measured(b4=50.0, b8=75.0, b16=100.0), 64, 200)
    b = Turn(measured(b4=50.0, b8=90.0, b16=125.0), 32, 250)
    c = Turn(measured(b4=60.0, b8=95.0, b16=125.0), 32, 250)
    cycle = fit([a, b])
    assert cycle is not None
    assert cycle.duty_ms == pytest.approx(125)
    assert cycle.batches == (8, 4)
    assert cycle.latencies == (75, 50)
    assert cycle.occupancy == pytest.approx(1)
    assert fit([a, c]) is None
    assert fit([a, b, c]) is None


def test_a_cycle_of_whole_batches_is_found_between_the_steps() -> None:
    # 70/s and exactly 1 ms for each request: only where 7 requests come in a cycle of 100 ms is there no rounding.
    row = [0.0, *(float(b) for b in range(1, 65))]
    cycle = fit([Turn(row, 70, 110.0), Turn([0.0] + [93.0] * 64, 1, 1000.0)])
    assert cycle is not None
    assert (cycle.duty_ms, cycle.batches) == (pytest.approx(100), (7, 1))


def test_three_times_the_fixed_cost_does_not_fit_into_a_short_cycle() -> None:
    assert fit([Turn(ROW, 10, 40)] * 2) is not None
    # Three turns of at least 10 ms in a cycle of at most 30 leave 10 of the 40 ms: just.
    assert fit([Turn(ROW, 10, 40)] * 3) is not None
    assert fit([Turn(ROW, 10, 40)] * 4) is None


def test_neighbours_count() -> None:
    assert fit([Turn(ROW, 10, 40, slowdown=1.5)] * 3) is None


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
        assert latency == pytest.approx(ROW[batch] * turn.slowdown)
        assert cycle.duty_ms + latency <= turn.slo_ms * (1 + 1e-9)
        assert batch * 1000 / cycle.duty_ms >= turn.rate * (1 - 1e-9)  # what comes in a cycle is served in it
