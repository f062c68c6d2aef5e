"""Goodput by policy on a real GPU: the highest rate at which 99 % of each model's requests are answered in time.

python -m bench.serving --profiles FILE [--mixes traffic,opposites] [--policies timeshare,nway+type,streams]
                        [--seconds 1.2] [--trials 5] [--budget SECONDS] [--quick] [-o RESULT.json]
python -m bench.serving --profiles FILE --policies process,mps --hop 0.4

The planner, the dispatcher and the executors (green contexts, CUDA graphs, host to host) are those of `gemlet serve`;
requests come from this process, Poisson, and no network is in between: the frontend is the same nothing
for every policy. SLO = 2 x latency of a batch of 32 on the whole GPU by the profile, at least 5 ms.

planned  requests/s for which the policy finds a plan
served   requests/s at which 99 % of each model's requests are in time with that plan, by trying; live
harness  requests/s that this process carries with that plan if models take no time: a row near it is bound by it
slower   models that run without a CUDA graph that they should have: such a row says little
streams  the plan of nway+type without green contexts: every gpu-let is a stream on all SMs
apart    nway+type without pools: each model has gpu-lets of its own, or takes turns on one
process  the plan of nway+type in an executor's process, as `gemlet serve` has it: batches have their way to it
mps      nway+type for the executor `mps`: a process for each gpu-let, under an MPS that is started for it; compare it
         with process, and plan both with the --hop that this way takes

simulate (--simulate) without a GPU: what the simulator serves with the same plans; no streams

The result file has every trial: attainment by model, what batches took against the profile, the idle time of gpu-lets
between two batches, and the graphs of each gpu-let. Models are loaded once; their first batches on a GPU take long.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench import mixes
from bench.executors import Executors
from bench.machine import end_on_signals
from bench.own_mps import mps_of_gemlet
from bench.planner import simulated_peak
from bench.serving_live import WARM_UP_S, Live, harness_rate
from gemlet.errors import GemletError
from gemlet.monitor.tables import table
from gemlet.serve.models import built_in
from gemlet.serve.profiles import profile_files
from gemlet.simulate.serving import peak

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    import numpy as np

    from gemlet.serve.execution.backend import GpuLet
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.plan.model import Plan, PlanOptions
    from gemlet.serve.profiles.profile import Profiles
    from gemlet.simulate.serving.simulator import Tally

OURS: dict[str, tuple[str, dict[str, object]]] = {
    "streams": ("nway+type", {}),
    "apart": ("nway+type", {"pool_models": 0}),
    "process": ("nway+type", {}),
    "mps": ("nway+type", {"executor": "mps"}),
}
POLICIES = (*mixes.COMPARED, "apart", "streams")
FIRST = 0.75  # of the planned rate: what the first trial asks for
AMPLE = 1.15  # of the planned rate: what nobody is asked for
MORE = 3  # trials, until one holds
SIMULATED = 8000  # requests of each simulated run
NEEDED_S = 3.0  # below this there is no time for another row


class Runs(Protocol):
    """A backend with models loaded, in this process or others."""

    prepared_ms: float

    @property
    def loaded(self) -> Collection[str]: ...
    @property
    def slower(self) -> list[str]: ...
    def load(self, model: ModelSpec) -> object: ...
    def graphs(self) -> list[dict[str, object]]: ...
    def partition(self, gpu_lets: Sequence[GpuLet]) -> None: ...
    def run(
        self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int
    ) -> Mapping[str, np.ndarray]: ...


class Backends:
    """What rows run on, made when the first needs it; ``ends`` ends it."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        from gemlet.serve.execution.backend import BackendOptions
        from gemlet.serve.execution.backends import green

        self._ends = ends
        self._options = BackendOptions()
        first = green.create(self._options)
        self.groups = first.groups
        self._there: dict[str, Runs] = {"green": first}

    def of(self, row: str) -> Runs:
        """Raises GemletError, RuntimeError."""
        kind = row if row in {"streams", "process", "mps"} else "green"
        if kind not in self._there:
            self._there[kind] = self._made(kind)
        return self._there[kind]

    def _made(self, kind: str) -> Runs:
        from gemlet.serve.execution.backends import streams

        if kind == "streams":
            return streams.create(self._options)
        if kind == "process":
            return self._ends.enter_context(Executors("green"))
        return self._ends.enter_context(Executors("mps", environment=self._ends.enter_context(mps_of_gemlet())))


def guess(low: float, high: float, tried: float, attainment: float) -> float:
    """The rate to try next: above or below the last by how well that went, in the middle once both ends are known."""
    if attainment >= peak.GOAL:
        return (low + high) / 2 if high < float("inf") else 1.2 * tried
    if low > 0:
        return (low + high) / 2
    return tried * (0.9 if attainment > 0.97 else 0.8 if attainment > 0.9 else 0.6)


def trial(live: Live, rates: dict[str, float], seconds: float) -> tuple[float, dict[str, Any]]:
    """The worst model's attainment, and remarks on the trial."""
    gc.collect()
    gc.disable()  # a pause of the collector would look like one of the GPU
    try:
        tallies: dict[str, Tally] = live.run(rates, seconds + WARM_UP_S)
    finally:
        gc.enable()
    worst = min(tally.attainment for tally in tallies.values())
    work = live.last.work if live.last else {}
    return worst, {
        "rate": round(sum(rates.values()), 1),
        "attainment": round(worst, 4),
        "by_model": {m: round(t.attainment, 4) for m, t in tallies.items()},
        "p99_ms": {m: round(t.percentile(0.99) or 0.0, 2) for m, t in tallies.items()},
        "lets": {f"gpu{gpu}/let{n}": each.summary(seconds + WARM_UP_S) for (gpu, n), each in sorted(work.items())},
    }


def serve(
    backends: Backends,
    kind: str,
    known: Profiles,
    weights: dict[str, float],
    planned: float,
    made: Plan,
    o: argparse.Namespace,
) -> dict[str, Any]:
    """The part of a row that is measured; ``served`` is 0 if no trial held."""
    row: dict[str, Any] = {"served": 0.0, "trials": []}
    total = sum(weights.values())
    begin = time.monotonic()
    live: Live | None = None
    low, high, times = 0.0, AMPLE * planned, FIRST * planned
    try:
        backend = backends.of(kind)
        for model in weights.keys() - set(backend.loaded):
            backend.load(built_in.spec(model))
        live = Live(backend, made, known, {m: mixes.slo(known, m) for m in weights})
        row["prepared_ms"] = round(backend.prepared_ms, 1)
        row["graphs"], row["slower"] = backend.graphs(), backend.slower
        live.warm_up()
        row["ready_s"] = round(time.monotonic() - begin, 2)
        row["harness"] = round(harness_rate(made, known, {m: 4 * w * planned for m, w in weights.items()}), 1)
        wanted = 3 if o.quick else o.trials
        for number in range(wanted + MORE):
            if low > 0 and (number >= wanted or high < 1.03 * low):
                break
            attainment, told = trial(live, {m: w * times for m, w in weights.items()}, o.seconds)
            row["trials"].append(told)
            low, high = (times, high) if attainment >= peak.GOAL else (low, times)
            row["served"] = round(low * total, 1)
            times = guess(low, high, times, attainment)
    except (GemletError, RuntimeError, OSError) as error:  # one row that fails does not cost the others
        row["error"] = f"{type(error).__name__}: {error}"
        logging.error("%s", row["error"])
    finally:
        if live is not None:
            live.close()
    return row


def cases(o: argparse.Namespace) -> list[tuple[str, str, dict[str, object]]]:
    """(name, policy, options) of the rows of a mix."""
    return [(name, *OURS.get(name, (name, {}))) for name in o.policies.split(",")]


def simulated(known: Profiles, o: argparse.Namespace) -> None:
    """What is left of a plan when requests come unevenly and batches take as long as the profile says."""
    first, lines = cases(o)[0][0], []
    for mix in o.mixes.split(","):
        weights = weights_of(known, mix)
        total, base = sum(weights.values()), 0.0
        for name, policy, more in cases(o):
            planned, made = mixes.largest_plan(known, weights, policy, 1, mixes.exact(weights, 1, hop_ms=o.hop, **more))
            if name in {"streams", "process"} or made is None:
                continue
            served = simulated_peak(known, mix, made, planned, SIMULATED)
            base = served if name == first else base
            gain = f"{served / base:.2f}" if base else "-"
            lines.append((mix, name, f"{planned * total:.0f}", f"{served * total:.0f}", gain))
    header = ("mix", "policy", "planned/s", "simulated/s", f"x {first}")
    print("\n".join(table(header, lines, right=frozenset(header[2:]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--mixes", default="traffic,opposites,vision,language,game")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seconds", type=float, default=1.2, help="of each trial")
    parser.add_argument("--trials", type=int, default=6, help="of each row, at most")
    parser.add_argument("--budget", type=float, default=220.0, help="seconds; rows that would begin later are left out")
    parser.add_argument("--quick", action="store_true", help="three trials a row")
    parser.add_argument("--hop", type=float, default=0.0, help="ms of a batch beside its profile, for all policies")
    parser.add_argument("--simulate", action="store_true", help="no GPU: the same plans in the simulator")
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    logging.basicConfig(format="%(relativeCreated)d ms: %(message)s", level=logging.INFO)
    end = time.monotonic() + o.budget
    known = profile_files.load_profiles(o.profiles)
    if o.simulate:
        simulated(known, o)
        return
    sys.setswitchinterval(0.00005)  # the threads of gpu-lets must not wait 5 ms for the sending thread
    end_on_signals()
    with contextlib.ExitStack() as ends:
        measure(Backends(ends), known, end, o)


def weights_of(known: Profiles, mix: str) -> dict[str, float]:
    return {m: w for m, w in mixes.MIXES[mix].items() if m in known.models}


def plans(
    pool: ProcessPoolExecutor, known: Profiles, groups: int, o: argparse.Namespace
) -> list[tuple[str, str, Future[tuple[float, Plan | None]]]]:
    """(mix, name of the row, its plan), planned side by side in other processes while the GPU has work."""
    found = []
    for mix in o.mixes.split(","):
        weights = weights_of(known, mix)
        for name, policy, more in cases(o):
            options: PlanOptions = mixes.exact(weights, 1, grid=groups, hop_ms=o.hop, **more)
            found.append((mix, name, pool.submit(mixes.largest_plan, known, weights, policy, 1, options)))
    return found


def measure(backends: Backends, known: Profiles, end: float, o: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    workers = max(1, (os.cpu_count() or 1) // 2)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        for mix, name, coming in plans(pool, known, backends.groups, o):
            weights = weights_of(known, mix)
            planned, made = coming.result()
            row: dict[str, Any] = {"mix": mix, "policy": name, "planned": round(planned * sum(weights.values()), 1)}
            rows.append(row)
            if made is not None:
                row["lets"] = [
                    [gpu_let.sm, [t.model for t in gpu_let.tasks]] for gpu in made.gpus for gpu_let in gpu.gpu_lets
                ]
            if made is None or time.monotonic() > end - NEEDED_S:
                row["left_out"] = "no plan" if made is None else "the budget is used up"
                logging.info("%s, %s: left out, %s", mix, name, row["left_out"])
            else:
                row |= serve(backends, name, known, weights, planned, made, o)
                logging.info("%s, %s: %.0f requests/s of %.0f", mix, name, row["served"], row["planned"])
            if o.output:
                result = {
                    "schema": 2, "device": known.device.name, "hop_ms": o.hop, "seconds": o.seconds, "rows": rows,
                }  # fmt: skip
                o.output.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        pool.shutdown(cancel_futures=True)
    show(rows, cases(o)[0][0])


def show(rows: list[dict[str, Any]], base: str) -> None:
    """The table; the last column but two is over the first policy of the mix."""
    lines = []
    for row in rows:
        first = next((r.get("served", 0.0) for r in rows if r["mix"] == row["mix"] and r["policy"] == base), 0.0)
        served = row.get("served")
        gain = f"{served / first:.2f}" if served is not None and first else "-"
        lines.append(
            (
                row["mix"], row["policy"], f"{row['planned']:.0f}", "-" if served is None else f"{served:.0f}", gain,
                f"{row['harness']:.0f}" if "harness" in row else "-",
                "; ".join(row.get("slower", ())) or row.get("error") or row.get("left_out", ""),
            )
        )  # fmt: skip
    header = ("mix", "policy", "planned/s", "served/s", f"x {base}", "harness/s", "")
    print("\n".join(table(header, lines, right=frozenset(header[2:6]))))


if __name__ == "__main__":
    main()
