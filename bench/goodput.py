"""The numbers of serving on one GPU in five minutes: goodput by policy, rates that change, simulated against live.

    .venv/bin/python -m bench.goodput --profiles h200 -o OUT.json          on a GPU; torch has to be there
    .venv/bin/python -m bench.goodput --profiles h200 --simulate           no GPU: what the simulator says of the same

goodput    bench.serving: --policies on the mixes, the hop known to all; the highest rate served
changing   bench.replan: rates that change for --changing seconds over HTTP, for each policy of --changed; no pools, so
           that gpu-lets change
attainment bench.attainment: three plans at four loads; the simulator beside the live server

Each part is a program of its own with its own budget, and ends by itself; one that fails does not cost the others.
The verdicts at the end are those of the aims in docs/performance.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.arguments import output, positive
from bench.mixes import COMPARED
from gemlet.monitor.tables import table
from gemlet.serve.plan.demand_file import HOP_MS

AIMED = ("timeshare", "gpulet", "nway+type")  # the policies that aims are about
MIXES = "traffic,opposites,language,vision,game,equal,long-only,short-skew"
GAIN, OVER_GPULET, VIOLATIONS, POINTS = 1.62, 1.1, 0.001, 5.0
GRACE_S = 60.0  # for a part to end after its budget


def commands(o: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """By part: arguments of Python."""
    profiles, hop = ["--profiles", o.profiles], ["--hop", f"{o.hop:g}"]
    if o.simulate:
        return {
            "goodput": ["bench.serving", "--simulate", *profiles, *hop, "--mixes", o.mixes, "--policies", o.policies],
            "changing": [
                "bench.replan", "--simulate", "--traffic", "h200", *profiles, *hop, "--apart",
                "--seconds", f"{o.changing:g}", "--times", f"{o.times:g}", "--gpus", "1",
            ],
        }  # fmt: skip
    return {
        "goodput": [
            "bench.serving", *profiles, *hop, "--mixes", o.mixes, "--policies", o.policies, "--quick",
            "--seconds", "1", "--budget", f"{o.goodput:g}", "-o", str(folder / "goodput.json"),
        ],
        "changing": [
            "bench.replan", "--live", "--executor", o.executor, *profiles, *hop, "--apart", "--policies", o.changed,
            "--seconds", f"{o.changing:g}", "--times", f"{o.times:g}", "-o", str(folder / "changing.json"),
        ],
        "attainment": [
            "bench.attainment", "--executor", o.executor, *profiles, "--seconds", "2", "--seeds", "1",
            "-o", str(folder / "attainment.json"),
        ],
    }  # fmt: skip


def run(name: str, arguments: list[str], limit_s: float) -> str:
    """What went wrong; empty if nothing. Its words go to ours."""
    began = time.monotonic()
    print(f"== {name}: python -m {' '.join(arguments)}", flush=True)
    try:
        code = subprocess.run([sys.executable, "-m", *arguments], timeout=limit_s, check=False).returncode
        wrong = "" if code == 0 else f"exit code {code}"
    except subprocess.TimeoutExpired:
        wrong = f"it did not end within {limit_s:.0f} s"
    print(f"== {name}: {time.monotonic() - began:.0f} s{f', {wrong}' if wrong else ''}", flush=True)
    return wrong


def gains(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(mix, nway+type over timeshare, over gpulet) of the mixes for which those of `AIMED` were measured."""
    served: dict[str, dict[str, float]] = {}
    for row in rows:
        served.setdefault(row["mix"], {})[row["policy"]] = row.get("served", 0.0)
    return [
        (mix, by["nway+type"] / by["timeshare"], by["nway+type"] / by["gpulet"])
        for mix, by in served.items()
        if all(by.get(policy) for policy in AIMED)
    ]


def verdicts(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(part, what, measured, aim)."""
    lines = []
    for mix, gain, over in gains(found.get("goodput", {}).get("rows", [])):
        lines.append((mix, "nway+type over timeshare", f"{gain:.2f}", _met(gain >= GAIN, f">= {GAIN:g}")))
        lines.append((mix, "nway+type over gpulet", f"{over:.2f}", _met(over >= OVER_GPULET, f">= {OVER_GPULET:g}")))
    for name, one in found.get("changing", {}).get("runs", {}).items():
        if "violations" in one:
            share, others = one["violations"], one["plans_with_other_lets"]
            lines.append(("changing", f"{name}: violations", f"{share:.2%}", _met(share <= VIOLATIONS, "<= 0.1%")))
            lines.append(("changing", f"{name}: plans with other gpu-lets", str(others), _met(others > 0, "> 0")))
            lines.append(("changing", f"{name}: lost", str(one["lost"]), _met(one["lost"] == 0, "0")))
    rows = found.get("attainment", {}).get("rows", [])
    if rows:
        near = sum(abs(row["points"]) <= POINTS for row in rows)
        said = f"{near} of {len(rows)}"
        lines.append(("attainment", f"cases within {POINTS:g} points", said, _met(near == len(rows), "all")))
    return lines


def _met(met: bool, aim: str) -> str:
    return f"{aim}: {'met' if met else 'MISSED'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", default="h200", help="a name or a file; default h200")
    parser.add_argument("--executor", default="green", choices=["green", "mps", "streams", "modelled"])
    parser.add_argument(
        "--mixes", default=MIXES, help=f"default {MIXES}; those that the budget does not reach are left out"
    )
    everyone = ",".join(COMPARED)
    parser.add_argument("--policies", default=everyone, help=f"of goodput; default {everyone}")
    parser.add_argument("--changed", default="nway+type", help="policies under changing rates; default nway+type")
    parser.add_argument("--hop", type=float, default=HOP_MS, help=f"ms of a batch beside its profile; default {HOP_MS}")
    parser.add_argument("--goodput", type=positive, default=110.0, help="seconds for that part; default 110")
    parser.add_argument("--changing", type=positive, default=120.0, help="seconds of changing rates; default 120")
    parser.add_argument("--times", type=positive, default=0.8, help="multiplies the rates that change; default 0.8")
    parser.add_argument("--parts", default="goodput,changing,attainment")
    parser.add_argument("--simulate", action="store_true", help="no GPU")
    parser.add_argument("-o", "--output", type=output, help="JSON")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as name:
        folder = Path(name)
        changing = (o.changing + GRACE_S) * len(o.changed.split(","))
        limits = {"goodput": o.goodput, "changing": changing, "attainment": 60.0}
        wrong: dict[str, str] = {}
        found: dict[str, Any] = {}
        for part, arguments in commands(o, folder).items():
            if part not in o.parts.split(","):
                continue
            # In virtual time it takes what it takes.
            said = run(part, arguments, 3600.0 if o.simulate else limits[part] + GRACE_S)
            if said:
                wrong[part] = said
            result = folder / f"{part}.json"
            if result.exists():
                found[part] = json.loads(result.read_text())
            if o.output and not o.simulate:
                o.output.write_text(
                    json.dumps({"schema": 1, "hop_ms": o.hop, **found, "wrong": wrong}, indent=1) + "\n"
                )
    lines = verdicts(found)
    if lines:
        print("\n".join(table(("part", "what", "measured", "aim"), lines)))
    for part, words in wrong.items():
        print(f"failed: {part}: {words}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
