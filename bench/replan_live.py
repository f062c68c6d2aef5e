"""The live half of bench/replan.py: changing rates over HTTP to a server that plans anew, and what became of them.

violations  requests that were not answered within their SLO, of all that were due
bad         seconds in which fewer than 99 % of a model's requests were in time
reaction    from a step of a model's rate to the end of the bad spell that it began; 0 if it began none
silent      the longest time, in tenths of a second, in which a model's requests were due and none was answered

Why requests were late, as the server saw it, is in bench.lateness's words; the result has the server's log, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import lateness
from bench.live_server import LiveServer, Load, ServerError, background, demand_file, write_models
from bench.machine import end_on_signals
from bench.outcomes import count, merged, reaction, silences, spells
from bench.own_mps import mps_of_gemlet
from bench.traffic import LENGTH_S, TRAFFIC, of, slos_of
from gemlet.monitor.tables import table
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.profiles import profile_files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from gemlet.load.arrivals import Steps
    from gemlet.serve.profiles.profile import Profiles

SCHEMA = 1
FINE_S = 0.1  # intervals in which silence is looked for
FINE = 10  # of them in a second
EVERY_S = FINE * FINE_S
PROGRESS_S = 10.0
SAME = ", 0 gpu-lets changed"  # in the words of a plan
MOST_LOG = 2000  # lines
WARM_UP = 1 / 60  # of the run: not counted in totals
LESS = 0.95  # of all rates, again and again, until a fixed plan fits on the device
PLANS = {"follow": "first", "mean": "mean", "highest": "highest"}


def run(o: argparse.Namespace) -> int:
    """All runs that were asked for; 1 if something was lost or a server did not end as it should."""
    end_on_signals()
    known = profile_files.load_profiles(Path(o.profiles))
    traffic = TRAFFIC[o.traffic]
    rates, slos = traffic.rates(o.seconds, o.times), slos_of(known, traffic)
    total = sum(of("mean", rate) for rate in rates.values())
    print(f"{o.seconds:g} s of {total:.0f} requests/s on average; SLOs {slos}", flush=True)
    result: dict[str, Any] = {
        "schema": SCHEMA, "executor": o.executor, "modelled": o.executor == "modelled", "seconds": o.seconds,
        "profiles": f"{known.device.name}, {known.origin}", "cpus": os.cpu_count(), "slos_ms": slos, "mean_rate": total,
        "steps": steps_of(o), "policies": o.policies, "planner": planner_of(o), "runs": {},
    }  # fmt: skip
    mps = mps_of_gemlet() if o.executor == "mps" else contextlib.nullcontext(dict(os.environ))
    stopped = False
    with mps as env:
        for name, policy, which in runs(o):
            if stopped or which not in PLANS:
                result["runs"][name] = {"left_out": "stopped" if stopped else f"one of {', '.join(PLANS)}"}
                continue
            try:
                one = Run(o, which, policy, known, rates, slos)
            except ServerError as error:  # this policy has no plan; another may
                result["runs"][name] = {"left_out": str(error)}
                continue
            try:
                one.go(env)
            except (ServerError, OSError, subprocess.SubprocessError) as error:
                one.result["failed"] = str(error)
                print(f"failed: {name}: {error}", file=sys.stderr, flush=True)
            stopped = one.stopped
            result["runs"][name] = one.result
            write(o, result)
    write(o, result)
    show(result)
    done = [each for each in result["runs"].values() if "left_out" not in each]
    good = all("failed" not in each and each["lost"] == 0 and each["exit_code"] == 0 for each in done)
    return 0 if done and good else 1


def runs(o: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(name, policy, which plan) of each run; a name has the policy in it if there are several."""
    policies = o.policies.split(",")
    return [
        (which if len(policies) == 1 else f"{policy}, {which}", policy, which)
        for policy in policies
        for which in o.plans.split(",")
    ]


def write(o: argparse.Namespace, result: dict[str, Any]) -> None:
    if o.output:
        o.output.write_text(json.dumps(result, indent=1) + "\n")


def steps_of(o: argparse.Namespace) -> list[dict[str, Any]]:
    """When a model's rate jumps up, in seconds of this run."""
    found = []
    for model, begin, end, times in TRAFFIC[o.traffic].steps:
        at = begin if times > 1 else end  # the end of a lull is a step up, too
        found.append({"model": model, "at_s": at * o.seconds / LENGTH_S, "times": times if times > 1 else 1 / times})
    return found


def planner_of(o: argparse.Namespace) -> dict[str, Any]:
    """Options of the planner that differ from its own."""
    return {"hop_ms": o.hop} | ({"pool_models": 0} if o.apart else {})


def fitting(
    known: Profiles, rates: Mapping[str, float], slos: Mapping[str, float], policy: str, o: argparse.Namespace
) -> float:
    """The part of all rates that there is a plan for on one device. Raises ServerError if there is none."""
    options, part = PlanOptions(executor="mps" if o.executor == "mps" else "green", **planner_of(o)), 1.0
    while part > LESS**40:
        demands = [Demand(model=m, rate=part * rate, slo_ms=slos[m]) for m, rate in rates.items()]
        if isinstance(plan(known, demands, Inventory(gpus=1), None, options, policy=policy), Plan):
            return part
        part *= LESS
    raise ServerError("there is no plan for these models on one device, whatever their rates")


class Run:
    """One server under the whole traffic. ``result``: what became of it, as far as it came."""

    def __init__(
        self,
        o: argparse.Namespace,
        which: str,
        policy: str,
        known: Profiles,
        rates: dict[str, Steps],
        slos: dict[str, float],
    ) -> None:
        self.o, self.which, self.policy, self.rates, self.slos, self.known = o, which, policy, rates, slos, known
        self.plans: list[lateness.Adopted] = []
        self.planned = {model: of(PLANS[which], rate) for model, rate in rates.items()}
        self.part = fitting(known, self.planned, slos, policy, o)
        self.stopped = False
        self.result: dict[str, Any] = {
            "policy": policy,
            "planned_part": round(self.part, 3),
            "progress": [],
            "lost": 0,
            "exit_code": None,
        }

    def go(self, env: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as where:
            folder = Path(where)
            write_models(folder / "models", self.slos)
            planned = {model: self.part * rate for model, rate in self.planned.items()}
            (folder / "plan.toml").write_text(
                demand_file(self.slos, planned, 10, planner_of(self.o), policy=self.policy, hop=f"{self.o.hop:g}ms")
            )
            rows = zip(*(rate.rates for rate in self.rates.values()), strict=True)
            starts = next(iter(self.rates.values())).starts
            lines = [",".join(["second", *self.rates])]
            lines += [f"{at:g},{','.join(f'{rate:.2f}' for rate in row)}" for at, row in zip(starts, rows, strict=True)]
            (folder / "rates.csv").write_text("\n".join(lines) + "\n")
            changing = dict.fromkeys(self.rates, '{ file = "rates.csv" }')
            (folder / "load.toml").write_text(demand_file(self.slos, changing, self.o.seconds, seed=self.o.seed))
            arguments = ["--executor", self.o.executor, "--profiles", self.o.profiles, "--devices", "0"]
            arguments += ["--request-log", str(folder / "requests.jsonl")]
            arguments += ["--demand", str(folder / "plan.toml"), *([] if self.which == "follow" else ["--no-replan"])]
            with LiveServer(folder / "models", folder / "serve.log", *arguments, env=env) as server:
                print(
                    f"{self.policy}, {self.which}: ready after {server.ready_s:.1f} s, {server.document['note']}",
                    flush=True,
                )
                self.result |= {"ready_s": round(server.ready_s, 2), "note": server.document["note"]}
                self.result["replanning"] = server.document["replanning"]
                try:
                    self.measure(server, folder)
                finally:
                    ending = server.end()
                    self.result |= {"exit_code": ending.code, "executors_left": ending.left}
                    self.result["log"] = server.log.splitlines()[:MOST_LOG]
            self.result["lateness"] = lateness.report(
                lateness.read(folder / "requests.jsonl"), self.plans, self.slos, self.known
            )

    def measure(self, server: LiveServer, folder: Path) -> None:
        warm_up = f"{1000 * WARM_UP * self.o.seconds:.0f}ms"
        arguments = ("--every", f"{FINE_S:g}s", "--warmup", warm_up)
        self.plans.append(lateness.Adopted(0.0, 0.0, 0, server.capacity()))
        before = server.cpu()
        with background(server.http, str(folder / "load.toml"), *arguments, seconds=self.o.seconds) as load:
            try:
                self.follow(server, load)
            except (KeyboardInterrupt, SystemExit):
                self.stopped = True
                print("stopped: here is what there is", flush=True)
                load.stop()
            after = server.cpu()
            found = load.result()
        self.result["cpu_s"] = {name: round(after[name] - before[name], 2) for name in after}
        self.digest(found, server.changes())

    def follow(self, server: LiveServer, load: Load) -> None:
        """A line each ten seconds, of what the server says of itself, until the load has ended."""
        began = time.monotonic()
        last, last_cpu = self.counted(server), server.cpu()["server"]
        moment = began + PROGRESS_S
        while load.process.poll() is None and time.monotonic() < load.deadline:
            if time.monotonic() < moment:
                time.sleep(0.2)
                self.note_plans(server)
                continue
            now, cpu = self.counted(server), server.cpu()["server"]
            arrived, missed = (now[key] - last[key] for key in ("arrived", "missed"))
            line = {
                "at_s": round(moment - began), "rate": arrived / PROGRESS_S, "missed": missed / max(1, arrived),
                "plans": len(server.changes()), "server_cores": (cpu - last_cpu) / PROGRESS_S,
            }  # fmt: skip
            print(
                f"{line['at_s']:5.0f} s  {line['rate']:6.0f} requests/s  {line['missed']:7.2%} refused or late "
                f" {line['plans']:3d} plans  server {line['server_cores']:.2f} cores",
                flush=True,
            )
            self.result["progress"].append(line)
            last, last_cpu = now, cpu
            moment += PROGRESS_S

    def note_plans(self, server: LiveServer) -> None:
        """Of several new ones the last is known, which is then taken for the others, too."""
        new = server.changes()[len(self.plans) - 1 :]
        if new:
            capacity = server.capacity()
            self.plans += [lateness.in_force(change, capacity) for change in new]

    def counted(self, server: LiveServer) -> dict[str, int]:
        try:
            stats = [each["gemlet"] for each in server.ask("GET", "/v2/models/stats")[1]["model_stats"]]
        except (ServerError, KeyError) as error:
            raise ServerError(f"the server's statistics: {error}") from None
        return {
            "arrived": sum(each["arrived"] for each in stats),
            "missed": sum(each["late"] + sum(each["refused"].values()) for each in stats),
        }

    def digest(self, found: dict[str, Any], changes: list[dict[str, Any]]) -> None:
        """From the generator's own report, which counts from when requests were due."""
        total = count(found)
        models: dict[str, Any] = {}
        for name, each in found["models"].items():
            of_model = count(found, name)
            seconds = merged(each["intervals"], FINE)
            bad = spells(seconds, EVERY_S)
            models[name] = {
                "requests": of_model.requests, "violations": 1 - of_model.attainment, "refused": of_model.refused,
                "lost": of_model.lost, "reasons": dict(of_model.reasons), "p50_ms": each["p50_ms"],
                "p99_ms": each["p99_ms"], "bad": [msgspec.to_builtins(spell) for spell in bad],
                "silent": [msgspec.to_builtins(spell) for spell in silences(each["intervals"], FINE_S)],
                "reactions": [
                    step | {"reaction_s": reaction(bad, step["at_s"])}
                    for step in steps_of(self.o)
                    if step["model"] == name and step["at_s"] < found["seconds"]
                ],
                "intervals": seconds,
            }  # fmt: skip
        plans = [{"at_s": round(c["unix_s"] - found["began_unix_s"], 2), "words": c["words"]} for c in changes]
        self.result |= {
            "seconds": found["seconds"], "stopped": found["stopped"], "requests": total.requests,
            "violations": 1 - total.attainment, "lost": total.lost + total.unaccounted, "refused": total.refused,
            "plans_with_other_lets": sum(SAME not in each["words"] and "failed" not in each["words"] for each in plans),
            "bottleneck": found["bottleneck"], "generator_busy": found["generator_busy"], "plans": plans,
            "models": models,
        }  # fmt: skip


def why(found: Mapping[str, Any]) -> list[str]:
    """Tables: late requests by model and cause, and by cause and stage."""
    causes = [(model, *(str(by.get(cause, 0)) for cause in lateness.CAUSES)) for model, by in found["by_cause"].items()]
    stages = ("refused", *lateness.STAGES)
    wheres = [(cause, *(str(by.get(name, 0)) for name in stages)) for cause, by in found["by_stage"].items()]
    return [
        "late, by cause (bench.lateness):", *table(("model", *lateness.CAUSES), causes, right=set(lateness.CAUSES)),
        *(table(("cause", *stages), wheres, right=set(stages)) if wheres else []),
    ]  # fmt: skip


def show(result: dict[str, Any]) -> None:
    lines = []
    for name, one in result["runs"].items():
        if "models" not in one:
            print(f"{name}: {one.get('left_out') or one.get('failed')}")
            continue
        for model, each in one["models"].items():
            steps = ", ".join(f"{r['reaction_s']:.0f} s at {r['at_s']:.0f}" for r in each["reactions"])
            lines.append(
                (
                    name, model, f"{each['requests'] / one['seconds']:.0f}", f"{each['violations']:.2%}",
                    f"{each['p50_ms'] or 0:.2f}", f"{each['p99_ms'] or 0:.2f}",
                    f"{sum(s['end'] - s['begin'] for s in each['bad']):.0f} s",
                    f"{max((s['end'] - s['begin'] for s in each['bad']), default=0):.0f} s",
                    f"{max((s['end'] - s['begin'] for s in each['silent']), default=0):.1f} s",
                    str(each["lost"]), steps,
                )
            )  # fmt: skip
    header = (
        "plan", "model", "sent/s", "violations", "p50 ms", "p99 ms", "bad", "longest", "silent", "lost", "reaction",
    )  # fmt: skip
    if lines:
        print("\n".join(table(header, lines, right=frozenset(header) - {"plan", "model", "reaction"})))
    for name, one in result["runs"].items():
        if "models" in one:
            plans = f"{len(one['plans'])} plans, {one['plans_with_other_lets']} with other gpu-lets"
            part = "" if one["planned_part"] == 1 else f", first planned for {one['planned_part']:.0%} of its rates"
            print(
                f"{name}: {one['requests']} requests, {one['violations']:.2%} violations, {one['refused']} refused,"
                f" {one['lost']} lost; {plans}{part};"
                f" server {one['cpu_s']['server'] / one['seconds']:.2f} cores,"
                f" executors {one['cpu_s']['executors'] / one['seconds']:.2f}; exit code {one['exit_code']}"
            )
            print("\n".join(why(one["lateness"])))
            if one["bottleneck"]:
                print(f"doubtful: {name}: {one['bottleneck']}")
    if result["modelled"]:
        print("modelled time: no GPU was used")
