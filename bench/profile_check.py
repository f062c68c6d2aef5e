"""How well a profile tells what was not measured, and whether it would come out the same again.

python bench/profile_check.py --profiles FILE [--models A,B] [--budget SECONDS] [-o RESULT.json]

between  sizes and batches between the anchors (3, 6, 10 groups of SMs; batches 3, 6, 12, 24), against serve/surface.py
again    some anchors once more
few      the same points as between, from a profile that has only the anchors of --quick: what a short budget costs

The error is |profile - measured| / measured; the aim is 10 % at p90 between anchors.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.monitor.tables import table
from gemlet.serve import files
from gemlet.serve.models import catalogue
from gemlet.serve.profiling.repetition import Samples
from gemlet.serve.profiling.steps import QUICK_BATCHES, QUICK_PARTS, share
from gemlet.serve.surface import Surface
from quantiles import quantile

if TYPE_CHECKING:
    from gemlet.serve.profiles import Profiles

BETWEEN = [(groups, batch) for groups in (3, 6, 10) for batch in (3, 6, 12, 24)]
AGAIN = [(groups, batch) for groups in (1, 4, 16) for batch in (1, 32)]
POINTS = 5  # of each kind for each model


def measure(known: Profiles, models: list[str], budget: float) -> list[dict[str, Any]]:
    from gemlet.serve.profiling.gpu import GpuBench, GpuRig

    rig = GpuRig()
    end = time.monotonic() + budget
    chance = random.Random(2)
    rows: list[dict[str, Any]] = []
    for number, model in enumerate(models):
        if time.monotonic() > end:
            print(f"{len(models) - number} models are left out: the budget is used up", file=sys.stderr)
            break
        bench = GpuBench(rig, catalogue.spec(model))
        full = known.models[model].surface
        few = Surface([p for p in known.models[model].latency if p[0] in QUICK_PARTS and p[1] in QUICK_BATCHES])
        chosen = [("between", p) for p in chance.sample(BETWEEN, POINTS)]
        chosen += [("again", p) for p in chance.sample(AGAIN, POINTS)]
        for kind, (groups, batch) in chosen:
            bench.prepare(groups, (batch,))
            samples = Samples()
            while not samples.enough:
                samples.add(bench.once(groups, batch))
            at = share(groups, rig.groups)
            row = {"kind": kind, "model": model, "share": at, "batch": batch, "measured_ms": round(samples.median, 5)}
            rows.append(row | {"profile_ms": round(full.latency(at, batch), 5)})
            if kind == "between":
                rows.append(row | {"kind": "few", "profile_ms": round(few.latency(at, batch), 5)})
        bench.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--models", help="comma-separated; default: all built-in ones of the profile")
    parser.add_argument("--budget", type=float, default=100)
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    known = files.load_profiles(o.profiles)
    models = o.models.split(",") if o.models else [name for name in catalogue.DEFAULT if name in known.models]
    rows = measure(known, models, o.budget)
    if o.output:
        result = {"schema": 1, "device": known.device.name, "rows": rows}
        o.output.write_text(json.dumps(result, indent=1) + "\n")
    lines = []
    for kind in ("between", "again", "few"):
        errors = [abs(r["profile_ms"] / r["measured_ms"] - 1) for r in rows if r["kind"] == kind]
        if errors:
            lines.append((kind, str(len(errors)), *(f"{quantile(errors, q):.2%}" for q in (0.5, 0.9, 1.0))))
    header = ("", "points", "p50", "p90", "max")
    print("\n".join(table(header, lines, right=frozenset(header[1:]))))


if __name__ == "__main__":
    main()
