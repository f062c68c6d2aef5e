"""How well profiles predict what models do to each other: pairs of models on parts of one GPU, measured and predicted.

python -m bench.interference --profiles FILE [--models A,B] [--budget SECONDS] [--quick] [-o RESULT.json]

Each pair runs on SMs of its own (green contexts), both without a pause, at several splits and batches. measured: the
time of a batch beside the other over its time alone; predicted: plan/search/interference.py from the vectors in FILE,
which come from stressors, not from pairs. The error is |predicted - measured| / measured. gpulet's paper reports
10.26 % at p90 and 13.98 % at p95 for its own model, fitted to 1750 of its 2500 pairs; here no constant is fitted to
pairs.

Results of up to November 2026 have splits in which both had the same group of SMs (their shares sum to more than one);
these are shown apart.

--check FILE needs no GPU: it predicts again what RESULT.json measured, with the profiles of now.

linear: glet's model (plan/search/linear.py), fitted to seven of ten rows and judged by the rest, as its paper does.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bench.quantiles import quantile
from gemlet.monitor.tables import table
from gemlet.serve.plan.model import Linear
from gemlet.serve.plan.search.interference import contention, slowdown_beside
from gemlet.serve.plan.search.linear import Use, at, use
from gemlet.serve.profiles import profile_files

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

SPLITS = ((1 / 2, 1 / 2), (1 / 4, 3 / 4), (3 / 4, 1 / 4), (1 / 4, 1 / 4))  # of the groups of SMs, rounded down
BATCHES = ((32, 32), (8, 32), (32, 8), (4, 4))
PLACES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "max": 1.0}
FITTED = 0.7
LEAST_ROWS = 20  # for five coefficients and a judgement
AIM = {"p90": 0.1026, "p95": 0.1398}


def sizes(split: tuple[float, float], groups: int) -> tuple[int, int]:
    """Groups of one and of the other; together no more than there are."""
    return max(1, int(split[0] * groups)), max(1, int(split[1] * groups))


def predicted(known: Profiles, row: dict[str, Any]) -> list[float]:
    """The slow-down of both models of a row."""
    shares = [groups / row["of"] for groups in row["groups"]]
    values = []
    for me, other in ((0, 1), (1, 0)):
        neighbour = contention(known, shares[other], [row["models"][other]])
        values.append(slowdown_beside(known.models[row["models"][me]].sensitivity, [neighbour], sum(shares) - 1))
    return values


def fitted(known: Profiles, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """glet's line through seven of ten rows: its coefficients, and the errors of the rest."""
    rows = random.Random(0).sample(rows, len(rows))
    learned = rows[: round(FITTED * len(rows))]
    terms, truths = zip(*(point for row in learned for point in _points(known, row)), strict=True)
    found, *_ = np.linalg.lstsq(np.array([[*each, 1.0] for each in terms]), np.array(truths), rcond=None)
    line = Linear(*(round(float(value), 4) for value in found))
    rest = [point for row in rows[len(learned) :] for point in _points(known, row)]
    errors = [
        abs(max(1.0, at(line, Use(term[0], term[2]), Use(term[1], term[3]))) - truth) / truth for term, truth in rest
    ]
    return {
        "coefficients": msgspec.to_builtins(line),
        "points": len(errors),
        **{name: round(quantile(errors, q), 4) for name, q in PLACES.items()},
    }


def _points(known: Profiles, row: dict[str, Any]) -> list[tuple[tuple[float, ...], float]]:
    """L2 of a model and of its neighbour, DRAM likewise, and how much slower it was; of both models."""
    uses = [use(known, row["groups"][n] / row["of"], [row["models"][n]]) for n in (0, 1)]
    return [
        ((uses[me].l2, uses[other].l2, uses[me].dram, uses[other].dram), row["slower"][me])
        for me, other in ((0, 1), (1, 0))
    ]


def summary(known: Profiles, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors: list[tuple[float, bool]] = []  # and whether both had SMs of their own
    naive: list[float] = []  # nobody disturbs anybody
    slower: list[float] = []
    for row in rows:
        apart = sum(row["groups"]) <= row["of"]
        for guess, truth in zip(predicted(known, row), row["slower"], strict=True):
            errors.append((abs(guess - truth) / truth, apart))
            naive.append(abs(1 - truth) / truth)
            slower.append(truth - 1)
    found = {
        "slow_down": slower,
        "error_without_a_model": naive,
        "error": [error for error, _ in errors],
        "error_on_own_sms": [error for error, apart in errors if apart],
        "error_with_a_shared_group": [error for error, apart in errors if not apart],
    }
    numbers = {
        what: {"points": len(values), **{name: round(quantile(values, q), 4) for name, q in PLACES.items()}}
        for what, values in found.items()
        if values
    }
    if len(rows) >= LEAST_ROWS:
        numbers["linear"] = fitted(known, rows)
    return {"points": len(errors), **numbers, "paper": AIM}


def measure(known: Profiles, models: list[str], budget: float, quick: bool) -> list[dict[str, Any]]:
    from gemlet.serve.models import built_in
    from gemlet.serve.profiling.gpu import GpuBench, GpuRig
    from gemlet.serve.profiling.together import milliseconds

    end = time.monotonic() + budget
    rig = GpuRig()
    if (rig.device.name, rig.device.sms) != (known.device.name, known.device.sms):
        sys.exit(f"the profiles are of {known.device.name}, this is {rig.device.name}")
    benches = {model: GpuBench(rig, built_in.spec(model)) for model in models}
    cases = [
        (pair, sizes(split, rig.groups), batches)
        for pair in combinations_with_replacement(models, 2)
        for split in (SPLITS[:2] if quick else SPLITS)
        for batches in (BATCHES[:1] if quick else BATCHES)
    ]
    random.Random(1).shuffle(cases)  # a budget that ends early leaves a fair sample
    rows: list[dict[str, Any]] = []
    for (one, other), split, batches in cases:
        if time.monotonic() > end:
            print(
                f"{len(cases) - len(rows)} of {len(cases)} cases are left out: the budget is used up", file=sys.stderr
            )
            break
        loads = []
        for model, begin, groups, batch in zip((one, other), (0, rig.groups - split[1]), split, batches, strict=True):
            benches[model].prepare(groups, sorted({b for both in BATCHES for b in both}), begin)
            loads.append(benches[model].load(groups, batch, begin))
        beside = milliseconds(loads)
        rows.append(
            {
                "models": [one, other], "groups": split, "of": rig.groups, "batches": batches,
                "alone_ms": [round(load.about_ms, 5) for load in loads],
                "slower": [round(ms / load.about_ms, 4) for ms, load in zip(beside, loads, strict=True)],
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--models", help="comma-separated; default: all built-in ones of the profile")
    parser.add_argument("--budget", type=float, default=200)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", type=Path, help="predict what this result measured")
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    known = profile_files.load_profiles(o.profiles)
    if o.check:
        rows = json.loads(o.check.read_text())["rows"]
    else:
        from gemlet.serve.models.built_in import DEFAULT

        models = o.models.split(",") if o.models else [name for name in DEFAULT if name in known.models]
        rows = measure(known, models, o.budget, o.quick)
    result = {"schema": 1, "device": known.device.name, "summary": summary(known, rows), "rows": rows}
    if o.output:
        o.output.write_text(json.dumps(result, indent=1) + "\n")
    totals = result["summary"]
    print(f"{totals['points']} slow-downs of pairs on {known.device.name}")
    names = ("p50", "p90", "p95", "max")
    lines = [
        (what.replace("_", " "), str(found["points"]), *(f"{found[name]:.2%}" for name in names))
        for what, found in totals.items()
        if isinstance(found, dict) and "points" in found
    ]
    lines.append(("gpulet's paper", "", "", f"{AIM['p90']:.2%}", f"{AIM['p95']:.2%}", ""))
    print("\n".join(table(("", "points", *names), lines, right=frozenset(("points", *names)))))


if __name__ == "__main__":
    main()
