"""Simulated against live: the part of the requests that is in time, of the same plans under the same arrivals.

python bench/attainment.py --simulate [--seconds 6] [--seeds 2] [--mixes one,two,turns] [--variation 0.03] [--slower 10]

Live is the engine, the queues and an executor's process of `gemlet serve` in modelled time (backend `modelled`),
without a network; requests come from this process, Poisson. Simulated is the simulator of `gemlet simulate --serve`.
Both know the same profiles: a roofline on the data sheet of an NVIDIA L4, `--slower` times slower, so that one core
can send what fills it. Neighbours do not slow each other down in modelled time, so they do not in the simulation. No
GPU is used; what differs is what the simulator does not know: the time that this machine takes for messages, timers
and other work. ``told``: a simulation that was told how much slower batches were live than their profile, and how
much that varied; what differs there is the simulator's own fault, or pauses of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import sys
from itertools import repeat
from statistics import mean, stdev
from typing import TYPE_CHECKING

import msgspec

from gemlet.monitor.tables import table
from gemlet.serve import arrivals, modelled
from gemlet.serve.call import Call, Refusal, Tensor
from gemlet.serve.engine import Engine, Served, now_ms
from gemlet.serve.execution.backend import BackendOptions, ModelSpec, TensorSpec
from gemlet.serve.execution.device import Device
from gemlet.serve.fleet import Fleet
from gemlet.serve.planner import Demand, Inventory, Options, Plan, plan
from gemlet.serve.profiles import Device as ProfiledDevice
from gemlet.serve.profiles import Profiles, render
from gemlet.serve.simulator import Tally, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemlet.serve.queue import Place

# Model -> its part of what the device can do, SLO over the latency of 8 requests on the whole device; and the policy.
MIXES: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "one": ("exclusive", {"resnet50": (1.0, 2.5)}),
    "two": ("nway", {"resnet50": (0.45, 3.0), "bert": (0.4, 4.0)}),
    "turns": ("timeshare", {"googlenet": (0.25, 8.0), "resnet50": (0.2, 6.0), "bert": (0.2, 5.0)}),
}
TIMES = (0.5, 0.8, 1.2, 1.5)


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
        best = plan(known, demands, Inventory(gpus=1), None, Options(quantile=0.5), policy=policy)
        if isinstance(best, Plan):
            return best
    raise SystemExit(f"{mix}: no plan: {best}")


def streams(made: Plan, times: float, seconds: float, seed: int) -> dict[str, Iterator[float]]:
    """In seconds, by model; at ``times`` what the plan can serve."""
    found = {}
    for task in made.tasks():
        chance = random.Random(f"{seed}/{task.model}")
        rate = arrivals.constant(times * task.capacity)
        found[task.model] = arrivals.times(rate, arrivals.gaps("poisson", 1.0, chance), seconds)
    return found


def simulated(known: Profiles, made: Plan, times: float, seconds: float, seed: int) -> dict[str, Tally]:
    slos = {demand.model: demand.slo_ms for demand in made.demands}
    coming = streams(made, times, seconds, seed)
    return simulate(made, known, coming, slos, seconds, seed=seed, interfere=False).models


def told(known: Profiles, ratios: dict[str, list[float]]) -> Profiles:
    """Profiles as batches turned out: their times over what the profile says, by model."""
    models = dict(known.models)
    for model, seen in ratios.items():
        slower = mean(seen)
        latency = tuple((share, batch, slower * ms) for share, batch, ms in models[model].latency)
        models[model] = msgspec.structs.replace(models[model], latency=latency, variation=stdev(seen) / slower)
    return msgspec.structs.replace(known, models=models)


async def live(
    known: Profiles, made: Plan, times: float, seconds: float, seed: int, ratios: dict[str, list[float]]
) -> dict[str, Tally]:
    slos = {demand.model: demand.slo_ms for demand in made.demands}
    tallies = {model: Tally(slo) for model, slo in slos.items()}
    engine = Engine()
    for model, slo in slos.items():
        spec = ModelSpec(
            name=model,
            directory="",
            platform="modelled",
            inputs=(TensorSpec("X", "FP32", (4,)),),
            outputs=(TensorSpec("Y", "FP32", (4,)),),
            max_batch=known.models[model].surface.max_batch,
            slo_ms=slo,
        )
        engine.models[model] = Served(spec)
        engine.expectation.know(model, known.models[model])
    learn = engine.expectation.observe

    def observe(place: Place, rows: int, ms: float) -> None:
        ratios.setdefault(place.model, []).append(ms / known.models[place.model].surface.row(place.let.sm)[rows])
        learn(place, rows, ms)

    setattr(engine.expectation, "observe", observe)  # noqa: B010  for once, somebody looks on
    async with asyncio.TaskGroup() as tasks:
        options = BackendOptions(device=0, profiles=render(known))
        one = Device(0, "modelled", options, tasks, on_died=engine.suspend, on_back=engine.resume)
        await one.start()
        fleet = Fleet(engine, [one])
        try:
            await fleet.apply(made)
            ends = asyncio.Event()
            named = (zip(stream, repeat(model)) for model, stream in streams(made, times, seconds, seed).items())
            expiring = tasks.create_task(_expire(engine, ends))
            await _send(engine, tallies, heapq.merge(*named))
            while engine.in_flight:  # noqa: ASYNC110  once in a run, and the count is kept anyway
                await asyncio.sleep(0.01)
            ends.set()
            await expiring
        finally:
            await fleet.close()
    return tallies


async def _expire(engine: Engine, ends: asyncio.Event) -> None:
    while not ends.is_set():
        engine.expire()
        await asyncio.sleep(0.005)


async def _send(engine: Engine, tallies: dict[str, Tally], coming: Iterator[tuple[float, str]]) -> None:
    begin = now_ms() + 100
    for at, model in coming:
        wait = begin + 1000 * at - now_ms()
        if wait > 0:
            await asyncio.sleep(wait / 1000)
        _send_one(engine, tallies[model], model, now_ms())


def _send_one(engine: Engine, tally: Tally, model: str, arrived: float) -> None:
    tally.sent += 1

    def answer(came: list[Tensor] | Refusal) -> None:
        if isinstance(came, Refusal):
            tally.dropped += 1
            if came.reason != "deadline":
                raise AssertionError(came.words)
            return
        tally.latencies.append(now_ms() - arrived)

    engine.infer(Call(model, [Tensor("X", "FP32", (1, 4), bytes(16))], answer, arrived))


def summed(tallies: dict[str, Tally]) -> tuple[int, int, int]:
    """Sent, in time, answered late."""
    sent = sum(tally.sent for tally in tallies.values())
    good = sum(tally.in_time for tally in tallies.values())
    return sent, good, sum(len(tally.latencies) for tally in tallies.values()) - good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="in modelled time; there is no other way yet")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--variation", type=float, default=0.03)
    parser.add_argument("--slower", type=float, default=10.0, help="times slower than an L4")
    options = parser.parse_args()
    if not options.simulate:
        parser.error("only --simulate works: nothing here drives a GPU")
    known = device(options.variation, options.slower)
    rows = []
    for mix in options.mixes.split(","):
        made = largest(known, mix)
        for times in TIMES:
            totals = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
            slower = []
            apart = []
            for seed in range(1, options.seeds + 1):
                ratios: dict[str, list[float]] = {}
                found = (
                    simulated(known, made, times, options.seconds, seed),
                    asyncio.run(live(known, made, times, options.seconds, seed, ratios)),
                    simulated(told(known, ratios), made, times, options.seconds, seed),
                )
                slower += [mean(seen) for seen in ratios.values()]
                for total, tallies in zip(totals, found, strict=True):
                    total[:] = [a + b for a, b in zip(total, summed(tallies), strict=True)]
                apart += [abs(found[0][m].attainment - found[1][m].attainment) for m in found[0]]
            (sent, good, late), (live_sent, live_good, live_late), (_, told_good, _) = totals
            length = options.seconds * options.seeds
            rows.append(
                (
                    mix,
                    f"{times:g} x",
                    f"{sent / length:.0f}/s",
                    f"{good / sent:.1%}",
                    f"{live_good / live_sent:.1%}",
                    f"{100 * (live_good / live_sent - good / sent):+.1f}",
                    f"{100 * max(apart):.1f}",
                    f"{100 * (live_good - told_good) / sent:+.1f}",
                    f"{mean(slower) - 1:.1%}",
                    f"{good / length:.0f}/s",
                    f"{live_good / length:.0f}/s",
                    f"{late / sent:.1%}",
                    f"{live_late / live_sent:.1%}",
                )
            )
            print(*rows[-1], file=sys.stderr, flush=True)
    header = (
        "mix", "load", "sent", "in time sim.", "live", "points", "worst model", "told", "slower", "goodput sim.",
        "live ", "late sim.",
        "live  ",
    )  # fmt: skip
    print(
        f"modelled time: {known.device.name}, variation {options.variation:g}, {options.seeds} x {options.seconds:g} s"
    )
    print("\n".join(table(header, rows, right=frozenset(header) - {"mix"})))
    print("points: live minus simulated, in points; told: minus the simulation that was told how slow batches were")
    print("worst model: the largest difference of one model in one run; slower: batches than their profile, on average")


if __name__ == "__main__":
    main()
