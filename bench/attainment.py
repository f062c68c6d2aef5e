"""Simulated against live: the part of the requests that is in time, of the same plans under the same arrivals.

python -m bench.attainment --simulate [--seconds 6] [--seeds 2] [--mixes one,two,turns] [--variation 0.03] [--slower 10]
python -m bench.attainment --executor green --profiles h200 [--seconds 6] [--seeds 2] [--mixes one,two,three] [-o FILE]

Live is the engine, the queues and the executors of `gemlet serve`, without a network; requests come from this process,
Poisson. Simulated is the simulator of `gemlet simulate --serve`. Both know the same profiles.

simulate  in modelled time (backend `modelled`): a roofline on the data sheet of an NVIDIA L4, `--slower` times slower,
          so that one core can send what fills it. Neighbours do not slow each other down in modelled time, so they do
          not in the simulation. No GPU is used; what differs is what the simulator does not know: the time that this
          machine takes for messages, timers and other work.
executor  on a GPU, with its measured profiles, on gpu-lets as small as one process can fill; neighbours slow each other
          down in both. `--executor modelled` tries that without a GPU.

check     RESULT of an earlier `--executor green`: what the simulator of now says of the same plans and arrivals

``told``: a simulation that was told how much slower batches were live than their profile, and how much that varied;
what differs there is the simulator's own fault, or pauses of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import random
import sys
from itertools import repeat
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bench.arguments import count, output, positive
from bench.machine import end_on_signals
from bench.own_mps import mps_of_gemlet
from gemlet.errors import GemletError
from gemlet.load import arrivals
from gemlet.monitor.tables import table
from gemlet.serve.dispatch.call import Answered, Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import Engine, now_ms
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.execution.backend import BackendOptions
from gemlet.serve.execution.device import Device
from gemlet.serve.models import built_in
from gemlet.serve.models.specification import ModelSpec, TensorSpec
from gemlet.serve.plan.demand_file import HOP_MS
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.profiles import modelled, profile_files
from gemlet.serve.profiles.profile import Device as ProfiledDevice
from gemlet.serve.profiles.profile import Profiles, render
from gemlet.serve.server.fleet import Fleet
from gemlet.simulate.serving.simulator import Tally, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gemlet.serve.dispatch.gpu_lets import Assignment

# Model -> its part of what the device can do, SLO over the latency of 8 requests on the whole device; and the policy.
MIXES: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "one": ("exclusive", {"resnet50": (1.0, 2.5)}),
    "two": ("nway", {"resnet50": (0.45, 3.0), "bert": (0.4, 4.0)}),
    "turns": ("timeshare", {"googlenet": (0.25, 8.0), "resnet50": (0.2, 6.0), "bert": (0.2, 5.0)}),
}
TIMES = (0.5, 0.8, 1.2, 1.5)
# On a GPU: requests/s of each model, few enough for the one process that sends and serves; the gpu-lets that nway+type
# makes for them. SLO: twice a batch of 32 on the whole device, at least LEAST_SLO_MS.
ON_GPU: dict[str, dict[str, float]] = {
    "one": {"vgg16": 500},
    "two": {"vgg16": 400, "bert": 1000},
    "three": {"densenet161": 60, "vgg16": 80, "resnet50": 100},
}
LEAST_SLO_MS = 10.0
WARM_UP_S = 1.0  # of each live mix, at a tenth of what its plan serves: not counted
END_S = 30.0  # for the last requests of a run
VARIANTS = 4  # different inputs of a model, that take turns
KINDS = {"UINT8": np.uint8, "INT64": np.int64}


def device(variation: float, slower: float = 10.0) -> Profiles:
    names = sorted({model for _, parts in MIXES.values() for model in parts})
    models = {
        name: msgspec.structs.replace(
            modelled.profile(modelled.ARCHITECTURES[name], tflops=121.0 / slower, tb_per_s=0.3 / slower),
            variation=variation,
        )
        for name in names
    }
    about = ProfiledDevice(name=f"NVIDIA L4 (modelled) / {slower:g}", sms=58, sm_step=4, memory_mib=23_000)
    return Profiles(origin="modelled", device=about, models=models, note="computed from data-sheet numbers")


def largest(known: Profiles, mix: str) -> Plan:
    """For the highest rates in these proportions that one device takes, within 3 %."""
    policy, parts = MIXES[mix]
    best = None
    for step in range(40, 4, -1):
        demands = []
        for model, (part, slack) in parts.items():
            surface = known.models[model].surface
            slo = round(slack * surface.latency(1.0, 8), 1)
            rate = step / 40 * part * 8000 / surface.latency(1.0, 8)
            demands.append(Demand(model=model, rate=rate, slo_ms=slo))
        best = plan(known, demands, Inventory(gpus=1), None, PlanOptions(quantile=0.5), policy=policy)
        if isinstance(best, Plan):
            return best
    raise SystemExit(f"{mix}: no plan: {best}")


def on_gpu(known: Profiles, mix: str, executor: str) -> Plan:
    """For the rates of ON_GPU."""
    demands = [
        Demand(model=model, rate=rate, slo_ms=max(LEAST_SLO_MS, 2 * known.models[model].surface.latency(1.0, 32)))
        for model, rate in ON_GPU[mix].items()
    ]
    # Without pools, which would have the whole device, and serve more than this one process sends.
    options = PlanOptions(quantile=0.5, executor="mps" if executor == "mps" else "green", pool_models=0)
    made = plan(known, demands, Inventory(gpus=1), None, options)
    if not isinstance(made, Plan):
        raise SystemExit(f"{mix}: no plan: {made}")
    return made


def streams(made: Plan, times: float, seconds: float, seed: int) -> dict[str, Iterator[float]]:
    """In seconds, by model; at ``times`` what the plan can serve."""
    found = {}
    for task in made.tasks():
        chance = random.Random(f"{seed}/{task.model}")
        rate = arrivals.constant(times * task.capacity)
        found[task.model] = arrivals.times(rate, arrivals.gaps("poisson", 1.0, chance), seconds)
    return found


def simulated(
    known: Profiles,
    made: Plan,
    times: float,
    seconds: float,
    seed: int,
    *,
    interfere: bool = False,
    hop_ms: float = 0.0,
) -> dict[str, Tally]:
    slos = {demand.model: demand.slo_ms for demand in made.demands}
    coming = streams(made, times, seconds, seed)
    return simulate(made, known, coming, slos, seconds, seed=seed, interfere=interfere, hop_ms=hop_ms).models


def told(known: Profiles, ratios: dict[str, list[float]]) -> Profiles:
    """Profiles as batches turned out: their times over what the profile says, by model."""
    models = dict(known.models)
    for model, seen in ratios.items():
        slower = mean(seen)
        latency = tuple((share, batch, slower * ms) for share, batch, ms in models[model].latency)
        models[model] = msgspec.structs.replace(models[model], latency=latency, variation=stdev(seen) / slower)
    return msgspec.structs.replace(known, models=models)


def modelled_spec(known: Profiles, model: str) -> ModelSpec:
    return ModelSpec(
        name=model,
        directory="",
        platform="modelled",
        inputs=(TensorSpec("X", "FP32", (4,)),),
        outputs=(TensorSpec("Y", "FP32", (4,)),),
        max_batch=known.models[model].surface.max_batch,
    )


class Live:
    """One plan on one device. A context manager: executors start with it, and end with it."""

    def __init__(self, known: Profiles, made: Plan, backend: str, specs: dict[str, ModelSpec]) -> None:
        self.known, self.plan, self.backend = known, made, backend
        self.slos = {demand.model: demand.slo_ms for demand in made.demands}
        self.engine = Engine()
        self.ratios: dict[str, list[float]] = {}
        self.inputs = {model: _inputs(spec) for model, spec in specs.items()}
        for model, spec in specs.items():
            self.engine.models[model] = ServedModel(msgspec.structs.replace(spec, slo_ms=self.slos[model]))
            self.engine.expectation.know(model, known.models[model])
        learn = self.engine.expectation.observe

        def observe(place: Assignment, rows: int, ms: float) -> None:
            by_profile = known.models[place.model].surface.row(place.gpu_let.sm)[rows]
            self.ratios.setdefault(place.model, []).append(ms / by_profile)
            learn(place, rows, ms)

        setattr(self.engine.expectation, "observe", observe)  # noqa: B010  for once, somebody looks on

    async def __aenter__(self) -> Live:
        self._ends = contextlib.AsyncExitStack()
        try:
            tasks = await self._ends.enter_async_context(asyncio.TaskGroup())
            options = BackendOptions(device=0, profiles=render(self.known))
            engine = self.engine
            one = Device(0, self.backend, options, tasks, on_died=engine.suspend, on_back=engine.resume)
            await one.start()
            fleet = Fleet(engine, [one])
            self._ends.push_async_callback(fleet.close)
            await fleet.apply(self.plan)
            self.note = one.note
        except BaseException:
            await self._ends.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

    async def run(self, times: float, seconds: float, seed: int) -> dict[str, Tally]:
        """Raises TimeoutError if requests do not end."""
        self.ratios.clear()
        tallies = {model: Tally(slo) for model, slo in self.slos.items()}
        coming = streams(self.plan, times, seconds, seed)
        named = (zip(stream, repeat(model)) for model, stream in coming.items())
        await _send(self, tallies, heapq.merge(*named))
        async with asyncio.timeout(END_S):
            while self.engine.in_flight:  # noqa: ASYNC110  once in a run, and the count is kept anyway
                await asyncio.sleep(0.01)
        return tallies


def _inputs(spec: ModelSpec) -> list[list[Tensor]]:
    """One row of all inputs of the model, VARIANTS times."""
    chance = np.random.default_rng(1)
    below = built_in.BUILT_IN[spec.name].below if spec.platform == "builtin" else 256

    def data(tensor: TensorSpec) -> bytes:
        if tensor.datatype not in KINDS:
            return chance.random(tensor.shape, dtype=np.float32).tobytes()
        return chance.integers(0, below, tensor.shape).astype(KINDS[tensor.datatype]).tobytes()

    return [[Tensor(t.name, t.datatype, (1, *t.shape), data(t)) for t in spec.inputs] for _ in range(VARIANTS)]


Runs = dict[tuple[float, int], tuple[dict[str, Tally], dict[str, list[float]]]]


async def modelled_runs(known: Profiles, made: Plan, times: float, seconds: float, seeds: Sequence[int]) -> Runs:
    """Live in modelled time: each with an executor of its own, which has learned nothing."""
    specs = {demand.model: modelled_spec(known, demand.model) for demand in made.demands}
    found: Runs = {}
    for seed in seeds:
        async with Live(known, made, "modelled", specs) as live:
            found[times, seed] = (await live.run(times, seconds, seed), dict(live.ratios))
    return found


async def gpu_runs(known: Profiles, made: Plan, backend: str, seconds: float, seeds: Sequence[int]) -> Runs:
    """Live on a GPU: models are loaded once for all runs of a mix"""
    specs = {demand.model: built_in.spec(demand.model) for demand in made.demands}
    found: Runs = {}
    async with Live(known, made, backend, specs) as live:
        print(f"{backend}: {live.note}", file=sys.stderr, flush=True)
        await live.run(0.1, WARM_UP_S, 0)
        for times in TIMES:
            for seed in seeds:
                found[times, seed] = (await live.run(times, seconds, seed), dict(live.ratios))
    return found


async def _send(live: Live, tallies: dict[str, Tally], coming: Iterator[tuple[float, str]]) -> None:
    begin = now_ms() + 100
    for at, model in coming:
        wait = begin + 1000 * at - now_ms()
        if wait > 0:
            await asyncio.sleep(wait / 1000)
        _send_one(live, tallies[model], model, now_ms())


def _send_one(live: Live, tally: Tally, model: str, arrived: float) -> None:
    tally.sent += 1

    def answer(came: Answered | Refusal) -> None:
        if isinstance(came, Refusal):
            tally.dropped += 1
            if came.reason != "deadline":
                raise AssertionError(came.message)
            return
        tally.latencies.append(now_ms() - arrived)

    live.engine.infer(Call(model, live.inputs[model][tally.sent % VARIANTS], answer, arrived))


def summed(tallies: dict[str, Tally]) -> tuple[int, int, int]:
    """Sent, in time, answered late."""
    sent = sum(tally.sent for tally in tallies.values())
    good = sum(tally.in_time for tally in tallies.values())
    return sent, good, sum(len(tally.latencies) for tally in tallies.values()) - good


def row(mix: str, times: float, o: argparse.Namespace, known: Profiles, made: Plan, runs: Runs) -> dict[str, Any]:
    """One plan at one load, all seeds together: simulated, live, and simulated with what was seen live."""
    totals = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    slower, apart = [], []
    by_model: dict[str, list[float]] = {}
    interfere = not o.simulate and o.executor != "modelled"
    for (at, seed), (lived, ratios) in runs.items():
        if at != times:
            continue
        plain = simulated(known, made, times, o.seconds, seed, interfere=interfere, hop_ms=HOP_MS)
        # What neighbours and the way took is in the batches that were seen: once is enough.
        found = (plain, lived, simulated(told(known, ratios), made, times, o.seconds, seed))
        slower += [mean(seen) for seen in ratios.values()]
        for total, tallies in zip(totals, found, strict=True):
            total[:] = [a + b for a, b in zip(total, summed(tallies), strict=True)]
        apart += [abs(plain[m].attainment - lived[m].attainment) for m in plain]
        for m in plain:
            by_model.setdefault(m, []).append(lived[m].attainment - plain[m].attainment)
    (sent, good, late), (live_sent, live_good, live_late), (_, informed_good, _) = totals
    length = o.seconds * o.seeds
    return {
        "mix": mix, "times": times, "sent_per_s": sent / length, "simulated": good / sent,
        "live": live_good / live_sent,
        "told": informed_good / sent, "points": 100 * (live_good / live_sent - good / sent),
        "worst_model_points": 100 * max(apart), "by_model_points": {m: 100 * mean(d) for m, d in by_model.items()},
        "slower": mean(slower) - 1, "goodput_simulated": good / length, "goodput_live": live_good / length,
        "late_simulated": late / sent, "late_live": live_late / live_sent,
    }  # fmt: skip


def cells(r: dict[str, Any]) -> tuple[str, ...]:
    return (
        r["mix"], f"{r['times']:g} x", f"{r['sent_per_s']:.0f}/s", f"{r['simulated']:.1%}", f"{r['live']:.1%}",
        f"{r['points']:+.1f}", f"{r['worst_model_points']:.1f}", f"{100 * (r['live'] - r['told']):+.1f}",
        f"{r['slower']:.1%}", f"{r['goodput_simulated']:.0f}/s", f"{r['goodput_live']:.0f}/s",
        f"{r['late_simulated']:.1%}", f"{r['late_live']:.1%}",
    )  # fmt: skip


def measure(o: argparse.Namespace) -> tuple[Profiles, list[dict[str, Any]]]:
    known = device(o.variation, o.slower) if o.simulate else profile_files.load_profiles(Path(o.profiles))
    rows: list[dict[str, Any]] = []
    seeds = range(1, o.seeds + 1)
    for mix in o.mixes.split(","):
        made = largest(known, mix) if o.simulate else on_gpu(known, mix, o.executor)
        runs: Runs = {}
        if not o.simulate:
            gpu_lets = [
                (round(gpu_let.sm, 3), [t.model for t in gpu_let.tasks])
                for gpu in made.gpus
                for gpu_let in gpu.gpu_lets
            ]
            print(f"{mix}: {gpu_lets}", file=sys.stderr, flush=True)
            try:
                runs = asyncio.run(gpu_runs(known, made, o.executor, o.seconds, seeds))
            except (GemletError, TimeoutError, ExceptionGroup) as error:  # one mix that fails does not cost the others
                print(f"failed: {mix}: {error!r}", file=sys.stderr, flush=True)
                continue
        for times in TIMES:
            if o.simulate:
                runs = asyncio.run(modelled_runs(known, made, times, o.seconds, seeds))
            rows.append(row(mix, times, o, known, made, runs))
            print(*cells(rows[-1]), file=sys.stderr, flush=True)
            if o.output:
                about = {"schema": 1, "executor": o.executor, "modelled": o.simulate or o.executor == "modelled"}
                about |= {"profiles": known.device.name, "seconds": o.seconds, "seeds": o.seeds}
                o.output.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    return known, rows


def check(known: Profiles, result: dict[str, Any]) -> None:
    """The live attainment of a result beside what the simulator of now says of the same arrivals."""
    lines, worst = [], 0.0
    for r in result["rows"]:
        made = on_gpu(known, r["mix"], result["executor"])
        parts = []
        for hop_ms in (0.0, HOP_MS):
            good = sent = 0
            for seed in range(1, result["seeds"] + 1):
                tallies = simulated(known, made, r["times"], result["seconds"], seed, interfere=True, hop_ms=hop_ms)
                one = summed(tallies)
                sent, good = sent + one[0], good + one[1]
            parts.append(good / sent)
        points = [100 * (r["live"] - part) for part in parts]
        worst = max(worst, abs(points[1]))
        lines.append(
            (
                r["mix"],
                f"{r['times']:g} x",
                f"{r['live']:.1%}",
                *(f"{p:.1%}" for p in parts),
                *(f"{p:+.1f}" for p in points),
            )
        )
    header = ("mix", "load", "live", "simulated, no hop", f"hop {HOP_MS:g} ms", "points", "points ")
    print("\n".join(table(header, lines, right=frozenset(header[2:]))))
    print(f"largest difference: {worst:.1f} points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="in modelled time, on a slow device")
    parser.add_argument("--executor", choices=["green", "mps", "streams", "modelled"], help="live with it")
    parser.add_argument("--profiles", default="h200", help="with --executor: a name or a file; default h200")
    parser.add_argument("--seconds", type=positive, default=6.0, help="of each run")
    parser.add_argument("--seeds", type=count, default=2)
    parser.add_argument("--mixes", help=f"of {','.join(MIXES)}; with --executor of {','.join(ON_GPU)}")
    parser.add_argument("--variation", type=float, default=0.03)
    parser.add_argument("--slower", type=positive, default=10.0, help="times slower than an L4")
    parser.add_argument("--check", type=Path, metavar="RESULT", help="simulate anew what this result has of a GPU")
    parser.add_argument("-o", "--output", type=output, help="JSON, written as results come")
    o = parser.parse_args()
    if o.check is not None:
        check(profile_files.load_profiles(Path(o.profiles)), json.loads(o.check.read_text()))
        return
    if o.simulate == (o.executor is not None):
        parser.error("either --simulate or --executor")
    there = MIXES if o.simulate else ON_GPU
    o.mixes = o.mixes or ",".join(there)
    if unknown := set(o.mixes.split(",")) - set(there):
        parser.error(f"no mix {', '.join(unknown)}; there are {', '.join(there)}")
    end_on_signals()
    with mps_of_gemlet() if o.executor == "mps" else contextlib.nullcontext(dict(os.environ)) as env:
        os.environ.update(env)
        known, rows = measure(o)
    header = (
        "mix", "load", "sent", "in time sim.", "live", "points", "worst model", "told", "slower", "goodput sim.",
        "live ", "late sim.",
        "live  ",
    )  # fmt: skip
    where = f"{o.executor}: {known.device.name}" if o.executor else f"modelled time: {known.device.name}, variation"
    print(f"{where}{'' if o.executor else f' {o.variation:g}'}, {o.seeds} x {o.seconds:g} s")
    print("\n".join(table(header, [cells(r) for r in rows], right=frozenset(header) - {"mix"})))
    print("points: live minus simulated, in points; told: minus the simulation that was told how slow batches were")
    print("worst model: the largest difference of one model in one run; slower: batches than their profile, on average")
    if not rows:
        raise SystemExit("nothing was measured")
    print(f"largest difference of a plan at a load: {max(abs(r['points']) for r in rows):.1f} points")
    if o.executor == "modelled":
        print("modelled time: no GPU was used")


if __name__ == "__main__":
    try:
        main()
    except (GemletError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
