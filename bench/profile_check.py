"""How well a profile tells what was not measured, and whether it would come out the same again.

python -m bench.profile_check --profiles FILE [--models A,B] [--budget SECONDS] [-o RESULT.json]

between  sizes and batches between the anchors (3, 6, 10 groups of SMs; batches 3, 6, 12, 24), against surface.py
again    some anchors once more
few      the same points as between, from a profile that has only the anchors of --quick: what a short budget costs

The error is |profile - measured| / measured; the aim is 10 % at p90 between anchors.

--check FILE needs no GPU: it compares what RESULT.json measured with the profiles of now.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.quantiles import quantile
from gemlet.monitor.tables import table
from gemlet.serve.models import built_in
from gemlet.serve.profiles import profile_files
from gemlet.serve.profiles.surface import Surface
from gemlet.serve.profiling.repetition import Samples
from gemlet.serve.profiling.steps import QUICK_BATCHES, Latency, steps
from gemlet.serve.profiling.steps import share as at

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

BETWEEN = [(groups, batch) for groups in (3, 6, 10) for batch in (3, 6, 12, 24)]
QUICK_MAX = max(QUICK_BATCHES)
POINTS = 5  # of each kind for each model


def estimated(known: Profiles, model: str, kind: str, share: float, batch: int) -> float:
    """Milliseconds that the profile says, for ``few`` only from its anchors of a quick run."""
    anchors = known.models[model].latency
    if kind == "few":
        quick = [s for s in steps(known.device.parts, QUICK_MAX, quick=True) if isinstance(s, Latency)]
        wanted = {(at(s.groups, known.device.parts), b) for s in quick for b in s.batches}
        anchors = tuple(p for p in anchors if p[:2] in wanted)
        if len(anchors) < len(wanted):
            raise ValueError(f"the profile of {model} lacks anchors of a quick run")
    return round(Surface(anchors).latency(min(1.0, share), batch), 5)


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
        bench = GpuBench(rig, built_in.spec(model))
        again = [(groups, batch) for groups in (1, 4, rig.groups) for batch in (1, 32)]
        chosen = [("between", p) for p in chance.sample(BETWEEN, POINTS)]
        chosen += [("again", p) for p in chance.sample(again, POINTS)]
        for kind, (groups, batch) in chosen:
            bench.prepare(groups, (batch,))
            samples = Samples()
            while not samples.enough:
                samples.add(bench.once(groups, batch))
            part = at(groups, rig.groups)
            row = {"kind": kind, "model": model, "share": part, "batch": batch, "measured_ms": round(samples.median, 5)}
            rows += [row, row | {"kind": "few"}] if kind == "between" else [row]
        bench.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--models", help="comma-separated; default: all built-in ones of the profile")
    parser.add_argument("--budget", type=float, default=100)
    parser.add_argument("--check", type=Path, help="compare what this result measured")
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    known = profile_files.load_profiles(o.profiles)
    if o.check:
        rows = json.loads(o.check.read_text())["rows"]
    else:
        models = o.models.split(",") if o.models else [name for name in built_in.DEFAULT if name in known.models]
        rows = measure(known, models, o.budget)
    for row in rows:
        row["profile_ms"] = estimated(known, row["model"], row["kind"], row["share"], row["batch"])
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
