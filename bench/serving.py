"""Goodput by policy on a real GPU: the highest rate at which 99 % of each model's requests are answered in time.

python bench/serving.py --profiles FILE [--mixes traffic,opposites] [--policies timeshare,nway+type,streams]
                        [--seconds 2] [--budget SECONDS] [--quick] [-o RESULT.json]

The planner, the queues (serve/queue.py) and the executors (green contexts, CUDA graphs, host to host) are those of
`gemlet serve`; requests come from this process, Poisson, and no network is in between: the frontend is the same nothing
for every policy. SLO = 2 x latency of a batch of 32 on the whole GPU by the profile, at least 5 ms.

planned  requests/s for which the policy finds a plan
served   requests/s at which 99 % of each model's requests are in time with that plan, by bisection; live
streams  the plan of nway+type without green contexts: every gpu-let is a stream on all SMs

types    (--types) nway+type with less and more made of the workload types: none, tie-break, terms, oversubscribe
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import planner
from gemlet.errors import GemletError
from gemlet.monitor.tables import table
from gemlet.serve import arrivals, files, peak
from gemlet.serve.execution.backend import BackendOptions, LetSpec
from gemlet.serve.execution.backends import green, streams
from gemlet.serve.execution.ladder import ladder
from gemlet.serve.expectation import Expectation
from gemlet.serve.models import catalogue
from gemlet.serve.planner import Demand, Inventory, Options, Plan, plan
from gemlet.serve.queue import Batch, Dispatcher, Place, Request
from gemlet.serve.simulator import Tally

if TYPE_CHECKING:
    from gemlet.serve.execution.backends.torch_lets import TorchLets
    from gemlet.serve.profiles import Profiles

LEAST_SLO_MS = 5.0
WARM_UP_S = 0.3  # of a trial, not counted
POLICIES = ("timeshare", "gpulet", "nway", "nway+type", "streams")
KINDS = {"UINT8": np.uint8, "INT64": np.int64, "FP32": np.float32}
END = object()


class Let(threading.Thread):
    """Executes what it is given, one batch after the other."""

    def __init__(self, backend: TorchLets, name: str, inputs: dict[str, dict[str, np.ndarray]], done: Any) -> None:
        super().__init__(daemon=True)
        self.backend, self.let, self.inputs, self.done = backend, name, inputs, done
        self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self) -> None:
        while (batch := self.work.get()) is not END:
            model, rows = batch.place.model, batch.rows
            try:
                given = {name: array[:rows] for name, array in self.inputs[model].items()}
                self.backend.run(self.let, model, given, rows)
                self.done.put((batch, time.perf_counter(), None))
            except GemletError as error:
                self.done.put((batch, time.perf_counter(), error))


class Padded(Expectation):
    """A batch takes as long as the captured one it is padded to."""

    def __init__(self, known: Profiles, largest: dict[str, int]) -> None:
        super().__init__()
        self.steps = {model: ladder(most) for model, most in largest.items()}
        for model in largest:
            self.know(model, known.models[model])

    def __call__(self, place: Place, rows: int) -> float:
        return super().__call__(place, min(step for step in self.steps[place.model] if step >= rows))


class Live:
    """One plan on one GPU, ready to be loaded with requests."""

    def __init__(self, backend: TorchLets, made: Plan, known: Profiles, slos: dict[str, float]) -> None:
        self.plan, self.known, self.slos = made, known, slos
        self.largest = {model: known.models[model].surface.max_batch for model in slos}
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        chance = np.random.default_rng(1)
        inputs: dict[str, dict[str, np.ndarray]] = {}
        for model in slos:
            entry = catalogue.CATALOGUE[model]
            inputs[model] = {
                t.name: chance.integers(0, entry.below, (self.largest[model], *t.shape)).astype(KINDS[t.datatype])
                for t in entry.inputs
            }
        names = {(gpu.index, n): f"gpu{gpu.index}/let{n}" for gpu in made.gpus for n in range(len(gpu.lets))}
        backend.partition(
            [
                LetSpec(name=names[gpu.index, n], sm=let.sm, models={t.model: self.largest[t.model] for t in let.tasks})
                for gpu in made.gpus
                for n, let in enumerate(gpu.lets)
            ]
        )
        self.lets = {key: Let(backend, name, inputs, self.done) for key, name in names.items()}
        for let in self.lets.values():
            let.start()

    def close(self) -> None:
        for let in self.lets.values():
            let.work.put(END)
        for let in self.lets.values():
            let.join(5)

    def run(self, rates: dict[str, float], seconds: float, seed: int = 1) -> dict[str, Tally]:
        """Poisson requests for so long, all of them answered or dropped."""
        tallies = {model: Tally(slo) for model, slo in self.slos.items()}
        coming = [
            (1000 * at, model)
            for model, rate in rates.items()
            for at in arrivals.times(
                arrivals.constant(rate), arrivals.gaps("poisson", 1.0, random.Random(f"{seed}/{model}")), seconds
            )
        ]
        coming.sort()
        dispatcher = Dispatcher(self.plan, Padded(self.known, self.largest), lambda model: self.largest[model])
        begin = time.perf_counter() + 0.01
        number = running = 0
        while number < len(coming) or running or any(dispatcher.queues.values()):
            now = 1000 * (time.perf_counter() - begin)
            touched = set()
            while number < len(coming) and coming[number][0] <= now:
                at, model = coming[number]
                number += 1
                dispatcher.submit(Request(model, at, at + self.slos[model]))
                touched.add(model)
                if at > 1000 * WARM_UP_S:
                    tallies[model].sent += 1
            for model in touched:
                for batch in dispatcher.start(now, model):
                    running += self.execute(batch)
            dispatcher.drops()  # sent, and never in time
            wait = (coming[number][0] - now) / 1000 if number < len(coming) else 0.05
            try:
                finished, at_s, error = self.done.get(timeout=max(wait, 0.0)) if wait > 0 else self.done.get_nowait()
            except queue.Empty:
                continue
            if error is not None:
                raise error
            running -= 1
            self.account(tallies, finished, 1000 * (at_s - begin))
            now = 1000 * (time.perf_counter() - begin)
            for batch in dispatcher.finish(finished, now):
                running += self.execute(batch)
        return tallies

    def execute(self, batch: Batch) -> int:
        self.lets[batch.let.gpu, batch.let.number].work.put(batch)
        return 1

    @staticmethod
    def account(tallies: dict[str, Tally], batch: Batch, now: float) -> None:
        tally = tallies[batch.place.model]
        tally.batches += 1
        tally.latencies += [now - r.arrived for r in batch.requests if r.arrived > 1000 * WARM_UP_S]


def demands(known: Profiles, mix: dict[str, float], times: float) -> list[Demand]:
    return [
        Demand(model=m, rate=w * times, slo_ms=max(LEAST_SLO_MS, 2 * known.models[m].surface.latency(1.0, 32)))
        for m, w in mix.items()
    ]


def largest_plan(known: Profiles, mix: dict[str, float], policy: str, options: Options) -> tuple[float, Plan | None]:
    plans: dict[float, Plan] = {}

    def possible(times: float) -> bool:
        made = plan(known, demands(known, mix, times), Inventory(gpus=1), None, options, policy=policy)
        if isinstance(made, Plan):
            plans[times] = made
        return isinstance(made, Plan)

    times = peak.highest(possible, start=500.0, steps=7)
    return times, plans.get(times)


def serve(
    backend: TorchLets, known: Profiles, mix: dict[str, float], policy: str, options: Options, o: argparse.Namespace
) -> dict[str, Any]:
    planned, made = largest_plan(known, mix, policy, options)
    row: dict[str, Any] = {"planned": round(planned * sum(mix.values()), 1), "served": 0.0, "trials": []}
    if made is None:
        return row
    slos = {d.model: d.slo_ms for d in demands(known, mix, planned)}
    live = Live(backend, made, known, slos)
    row["prepared_ms"] = round(backend.prepared_ms, 1)
    row["lets"] = [[let.sm, [t.model for t in let.tasks]] for gpu in made.gpus for let in gpu.lets]

    def holds(times: float) -> bool:
        tallies = live.run({m: w * times for m, w in mix.items()}, o.seconds + WARM_UP_S)
        worst = min(t.attainment for t in tallies.values())
        p99 = {m: round(t.percentile(0.99) or 0.0, 2) for m, t in tallies.items()}
        trial = {"rate": round(times * sum(mix.values()), 1), "attainment": round(worst, 4), "p99_ms": p99}
        row["trials"].append(trial)
        return worst >= peak.GOAL

    low, high = 0.0, 1.3 * planned
    try:
        for step in range(4 if o.quick else 7):
            middle = 0.8 * planned if step == 0 else (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
    finally:
        live.close()
    row["served"] = round(low * sum(mix.values()), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--mixes", default="traffic,opposites,vision,language,game")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--types", action="store_true", help="the ablation of the workload types instead of policies")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each trial")
    parser.add_argument("--budget", type=float, default=220.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    known = files.load_profiles(o.profiles)
    end = time.monotonic() + o.budget
    sys.setswitchinterval(0.0002)  # the thread that dispatches must not wait 5 ms for those of the gpu-lets
    backends: dict[str, TorchLets] = {"green": green.create(BackendOptions())}
    backends["streams"] = streams.create(BackendOptions())
    cases = [("none", "nway"), ("tie-break", "nway"), ("terms", "nway+type"), ("oversubscribe", "nway+type")]
    names = [c[0] for c in cases] if o.types else o.policies.split(",")
    rows: list[dict[str, Any]] = []
    for mix in o.mixes.split(","):
        weights = {m: w for m, w in planner.MIXES[mix].items() if m in known.models}
        for name in names:
            if time.monotonic() > end:
                print(f"{mix}, {name}: left out, the budget is used up", file=sys.stderr)
                continue
            backend = backends["streams" if name == "streams" else "green"]
            for model in weights:
                if model not in backend.loaded:
                    backend.load(catalogue.spec(model))
            policy = dict(cases)[name] if o.types else "nway+type" if name == "streams" else name
            options = Options(quantile=0.5, types=name) if o.types else Options(quantile=0.5)  # type: ignore[arg-type]
            row = {"mix": mix, "policy": name, **serve(backend, known, weights, policy, options, o)}
            rows.append(row)
            print(f"{mix}, {name}: {row['served']:.0f} requests/s", file=sys.stderr, flush=True)
            if o.output:
                result = {"schema": 1, "device": known.device.name, "seconds": o.seconds, "rows": rows}
                o.output.write_text(json.dumps(result, indent=1) + "\n")
        for backend in backends.values():
            for model in weights:
                backend.unload(model)
    lines = []
    for row in rows:
        base = next((r["served"] for r in rows if r["mix"] == row["mix"]), 0.0)
        gain = f"{row['served'] / base:.2f}" if base else "-"
        lines.append((row["mix"], row["policy"], f"{row['planned']:.0f}", f"{row['served']:.0f}", gain))
    header = ("mix", "types" if o.types else "policy", "planned/s", "served/s", f"x {names[0]}")
    print("\n".join(table(header, lines, right=frozenset(header[2:]))))


if __name__ == "__main__":
    main()
