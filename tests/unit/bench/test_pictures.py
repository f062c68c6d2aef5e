"""The pictures of the results: what is in them, that they say where it was measured, that they are always the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.latency_table import Measured, entry
from bench.pictures import caption, courses, latency_distribution, share_over_time, tails

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"device": "simulated H200", "driver": "simulated", "commit": "abc", "simulated": True}
SHARES: dict[str, Any] = {
    "about": ABOUT,
    "courses": [
        {
            "name": "elastic",
            "events": [[1.0, "b arrives"]],
            "groups": [
                {"name": "a", "promise": "at least 30 %", "points": [[0.5, 1.0], [1.5, 0.3]]},
                {"name": "b", "promise": "at least 70 %", "points": [[0.5, 0.0], [1.5, 0.7]]},
            ],
        }
    ],
}


def latencies() -> dict[str, Any]:
    values = [300.0 + i for i in range(1000)]
    rows = [
        entry(neighbour, way, way, Measured.of(values, None, 0))
        for neighbour, way in ((None, "alone"), ("100us", "gemlet"), ("1ms", "gemlet"), ("100us", "fifo"))
    ]
    return {"about": ABOUT | {"simulated": False, "device": "NVIDIA H200"}, "latencies": rows}


def test_the_caption_says_where_and_whether_it_was_simulated() -> None:
    assert caption(ABOUT, "bench/sharing.py").startswith("SIMULATED, not a GPU: simulated H200, driver simulated")
    assert caption(ABOUT | {"simulated": False}, "x") == "simulated H200, driver simulated, commit abc, x"


def test_a_curve_for_each_way_that_is_shown() -> None:
    curves = tails(latencies()["latencies"])
    assert [c.label for c in curves] == ["alone", "gemlet"]
    x, y = zip(*curves[0].points, strict=True)
    assert x == tuple(sorted(x))
    assert (x[0], y[0]) == (0.3, 1)
    assert x[-1] == pytest.approx(1.3, abs=0.01)


def test_a_course_has_groups_and_events() -> None:
    curves, events = courses(SHARES)
    assert [c.label for c in curves] == ["a, at least 30 %", "b, at least 70 %"]
    assert events == [(1.0, "b arrives")]
    with pytest.raises(LookupError):
        courses({"about": ABOUT})


def test_the_same_results_give_the_same_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install --group bench")
    for name, draw, document in (
        ("shares", share_over_time, SHARES),
        ("latencies", latency_distribution, latencies()),
    ):
        drawn = []
        for again in ("1", "2"):
            path = tmp_path / f"{name}{again}.svg"
            draw(json.loads(json.dumps(document)), path)
            drawn.append(path.read_bytes())
        assert drawn[0] == drawn[1]
        assert b"<svg" in drawn[0]
