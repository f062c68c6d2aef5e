"""The prediction of slow-downs against pairs measured on an H200, with the profiles that are part of gemlet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import interference, profile_check
from gemlet.serve.plan.model import Linear
from gemlet.serve.plan.search.linear import at, use
from gemlet.serve.profiles import profile_files

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "h200-0767227"
KNOWN = profile_files.load_profiles(Path("h200"))


@pytest.fixture
def rows() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((RESULTS / "interference.json").read_text())["rows"]
    return found


def test_slow_downs_are_predicted_as_well_as_gpulets_paper_reports(rows: list[dict[str, object]]) -> None:
    summary = interference.summary(KNOWN, rows)
    assert summary["points"] == 1622
    for which in ("error", "error_on_own_sms"):
        assert summary[which]["p90"] <= interference.AIM["p90"]
        assert summary[which]["p95"] <= interference.AIM["p95"]
    assert summary["error_on_own_sms"]["points"] == 1622
    assert summary["error"]["p90"] < 0.6 * summary["error_without_a_model"]["p90"]


def test_glets_line_is_fitted_to_some_rows_and_judged_by_the_others(rows: list[dict[str, Any]]) -> None:
    line = Linear(l2_own=0.2, l2=0.7, dram_own=0.1, dram=0.3, constant=1.0)
    for row in rows:
        uses = [use(KNOWN, row["groups"][n] / row["of"], [row["models"][n]]) for n in (0, 1)]
        row["slower"] = [at(line, uses[0], uses[1]), at(line, uses[1], uses[0])]
    found = interference.summary(KNOWN, rows)["linear"]
    assert found["coefficients"] == pytest.approx(msgspec.to_builtins(line), abs=1e-3)
    assert found["points"] == 2 * (len(rows) - round(interference.FITTED * len(rows)))
    assert found["max"] < 1e-3


def test_a_model_of_two_that_swap_places_swaps_its_slow_down(rows: list[dict[str, object]]) -> None:
    row = rows[0]
    swapped = {key: value[::-1] if isinstance(value, list) else value for key, value in row.items()}
    assert interference.predicted(KNOWN, swapped) == interference.predicted(KNOWN, row)[::-1]


@pytest.mark.parametrize("groups", [4, 15, 16, 20])
def test_no_split_of_the_bench_lets_two_have_the_same_sms(groups: int) -> None:
    for split in interference.SPLITS:
        one, other = interference.sizes(split, groups)
        assert one >= 1
        assert other >= 1
        assert one + other <= groups


def test_the_check_of_a_profile_finds_the_anchors_of_a_quick_run() -> None:
    known = KNOWN.models["bert"].surface.latency(1.0, 32)
    assert profile_check.estimated(KNOWN, "bert", "few", 1.0, 32) == pytest.approx(known)
    few = profile_check.estimated(KNOWN, "bert", "few", 0.25, 16)
    assert few == pytest.approx(KNOWN.models["bert"].surface.latency(0.25, 16), rel=0.15)
    assert few != profile_check.estimated(KNOWN, "bert", "between", 0.25, 16)
