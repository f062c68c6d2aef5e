"""How well profiles predict what models do to each other: pairs of models on parts of one GPU, measured and predicted.

python bench/interference.py --profiles FILE [--models A,B] [--budget SECONDS] [--quick] [-o RESULT.json]

Each pair runs on SMs of its own (green contexts), both without a pause, at several splits and batches. measured: the
time of a batch beside the other over its time alone; predicted: planner/interference.py from the vectors in FILE, which
come from stressors, not from pairs. The error is |predicted - measured| / measured. gpulet's paper reports 10.26 % at
p90 and 13.98 % at p95 for its own model, fitted to 1750 of its 2500 pairs; here no pair is fitted to.

--check FILE needs no GPU: it predicts again what RESULT.json measured, with the profiles of now.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from itertools import combinations_with_replacement
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.monitor.tables import table
from gemlet.serve import files
from gemlet.serve.planner.interference import press, slow_down
from gemlet.serve.profiles import RESOURCES
from quantiles import quantile

if TYPE_CHECKING:
    from gemlet.serve.profiles import Profiles

SPLITS = ((8, 8), (4, 12), (12, 4), (4, 4))  # groups of SMs of one and of the other, of 16
BATCHES = ((32, 32), (8, 32), (32, 8), (4, 4))
AIM = {"p90": 0.1026, "p95": 0.1398}


def predicted(known: Profiles, row: dict[str, Any]) -> list[float]:
    """The slow-down of both models of a row."""
    shares = [groups / row["of"] for groups in row["groups"]]
    values = []
    for me, other in ((0, 1), (1, 0)):
        neighbour = press(known, shares[other], [row["models"][other]])
        values.append(slow_down(known.models[row["models"][me]].sensitivity, [neighbour]))
    return values


def from_probes(known: Profiles, row: dict[str, Any]) -> list[float]:
    """Another prediction, from the raw probes: what a neighbour takes goes with its throughput at its share and
    batch, and a model's sensitivity is that of the nearest probe."""
    shares = [groups / row["of"] for groups in row["groups"]]
    values = []
    for me, other in ((0, 1), (1, 0)):
        mine, theirs = (known.models[row["models"][who]] for who in (me, other))
        alpha = 1.0
        for resource in RESOURCES:
            worst = known.stressors[resource] - 1
            felt = [p for p in mine.probes if p.resource == resource]
            caused = [p for p in theirs.probes if p.resource == resource]
            if worst <= 0.01 or not felt or not caused:
                continue
            near = min(felt, key=lambda p: (abs(log2(p.batch / row["batches"][me])), abs(p.share - shares[me])))
            like = min(caused, key=lambda p: (abs(log2(p.batch / row["batches"][other])), abs(p.share - shares[other])))
            rate = theirs.surface.latency(like.share, like.batch) / like.batch
            rate /= theirs.surface.latency(shares[other], row["batches"][other]) / row["batches"][other]
            taken = min(1.0, max(0.0, like.pressed - 1) / worst * rate)
            alpha += max(0.0, near.slower - 1) * taken
        values.append(alpha)
    return values


def summary(known: Profiles, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors: list[float] = []
    direct: list[float] = []
    naive: list[float] = []  # nobody disturbs anybody
    slower: list[float] = []
    for row in rows:
        for guess, truth in zip(predicted(known, row), row["slower"], strict=True):
            errors.append(abs(guess - truth) / truth)
            naive.append(abs(1 - truth) / truth)
            slower.append(truth - 1)
        for guess, truth in zip(from_probes(known, row), row["slower"], strict=True):
            direct.append(abs(guess - truth) / truth)
    places = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "max": 1.0}
    return {
        "points": len(errors),
        "error": {name: round(quantile(errors, q), 4) for name, q in places.items()},
        "error_from_probes": {name: round(quantile(direct, q), 4) for name, q in places.items()},
        "error_without_a_model": {name: round(quantile(naive, q), 4) for name, q in places.items()},
        "slow_down": {name: round(quantile(slower, q), 4) for name, q in places.items()},
        "paper": AIM,
    }


def measure(known: Profiles, models: list[str], budget: float, quick: bool) -> list[dict[str, Any]]:
    from gemlet.serve.models import catalogue
    from gemlet.serve.profiling.gpu import GpuBench, GpuRig
    from gemlet.serve.profiling.together import milliseconds

    end = time.monotonic() + budget
    rig = GpuRig()
    if (rig.device.name, rig.device.sms) != (known.device.name, known.device.sms):
        sys.exit(f"the profiles are of {known.device.name}, this is {rig.device.name}")
    benches = {model: GpuBench(rig, catalogue.spec(model)) for model in models}
    cases = [
        (pair, split, batches)
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
    known = files.load_profiles(o.profiles)
    if o.check:
        rows = json.loads(o.check.read_text())["rows"]
    else:
        from gemlet.serve.models.catalogue import DEFAULT

        models = o.models.split(",") if o.models else [name for name in DEFAULT if name in known.models]
        rows = measure(known, models, o.budget, o.quick)
    result = {"schema": 1, "device": known.device.name, "summary": summary(known, rows), "rows": rows}
    if o.output:
        o.output.write_text(json.dumps(result, indent=1) + "\n")
    words = result["summary"]
    print(f"{words['points']} slow-downs of pairs on {known.device.name}")
    names = ("p50", "p90", "p95", "max")
    lines = [(what.replace("_", " "), *(f"{words[what][n]:.2%}" for n in names))
             for what in ("slow_down", "error_without_a_model", "error_from_probes", "error")]  # fmt: skip
    lines.append(("gpulet's paper", "", f"{AIM['p90']:.2%}", f"{AIM['p95']:.2%}", ""))
    print("\n".join(table(("", *names), lines, right=frozenset(names))))


if __name__ == "__main__":
    main()
