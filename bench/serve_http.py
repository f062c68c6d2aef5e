"""`gemlet serve` end to end, over HTTP and gRPC: latency by rate, overload, a killed executor, models that come and go.

python -m bench.serve_http --executor green --profiles h200 [--quick] [--budget SECONDS] [-o RESULT.json]

Starts the server on a repository of built-in models (random weights) with a plan for the highest rate asked for, and
loads it with `gemlet load`, an open loop in processes of its own. Each part has its verdicts:

rates     constant Poisson rates over both protocols: latency, attainment, processor time of everybody
overload  a server with the first model on 7 % of the SMs, at --overload times what that serves, over HTTP
clients   tritonclient over HTTP and gRPC, if it is installed: binary tensors, system shared memory, an unknown model
killed    an executor dies by SIGKILL under load
reload    a model is unloaded and loaded again under load
ending    SIGTERM under load

lost: requests that nobody answered, neither with a result nor with a refusal; there must be none. With
`--executor modelled` batches take the time of their profile and no GPU is used. `mps` runs under `gemlet mps start`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import triton_check
from bench.arguments import output, positive, positives
from bench.live_server import LiveServer, Load, ServerError, background, demand_file, measured, write_models
from bench.machine import end_on_signals
from bench.outcomes import back_after, count, is_lost, silences
from bench.own_mps import mps_of_gemlet
from gemlet.errors import GemletError
from gemlet.monitor.tables import table
from gemlet.serve.models.built_in import BUILT_IN
from gemlet.serve.profiles import profile_files

SCHEMA = 1
LEAST_SLO_MS = 10.0  # what a network and a frontend take is not in a profile
HEADROOM = 1.1  # of the plan, over the highest rate that is sent
BASE = 0.25  # of the highest rate: what is sent while something else happens
SMALL = 0.07  # of the SMs: the gpu-let that is overloaded
KEPT = 0.8  # of the goodput at 0.9 x the capacity that an overload must leave
EVERY_S = 0.1  # intervals in which an outage is looked for
AFTER_S = 2.0  # of load before something happens, and after it is over
AWAY_S = 120.0  # at most, for an executor to come back
# What comes after the end of a server, or at the moment in which it closes an idle connection: HTTP has no way to tell
# the client before, and clients send such a request again.
CLOSED = ("cannot connect", "connection")
SECTIONS = ("rates", "overload", "clients", "killed", "reload", "ending")
NEEDED_S = 15.0  # a section that would begin with less is left out


class Bench:
    """One server and what is done to it. ``result`` is the document; checks are (what, held, words)."""

    def __init__(self, o: argparse.Namespace, folder: Path, env: dict[str, str]) -> None:
        self.o, self.folder, self.env = o, folder, env
        self.known = profile_files.load_profiles(Path(o.profiles))
        self.models: list[str] = o.models.split(",")
        self.slos = {m: max(LEAST_SLO_MS, 2 * self.known.models[m].surface.latency(1.0, 32)) for m in self.models}
        self.totals: list[float] = o.rates
        self.end = 0.0
        self.lines: list[tuple[str, ...]] = []
        self.result: dict[str, Any] = {
            "schema": SCHEMA,
            "executor": o.executor,
            "modelled": o.executor == "modelled",
            "profiles": f"{self.known.device.name}, {self.known.origin}",
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "slos_ms": self.slos,
            "checks": [],
            "left_out": {},
        }

    def check(self, what: str, held: bool, note: str) -> None:
        self.result["checks"].append({"what": what, "held": held, "words": note})
        print(f"{'ok    ' if held else 'FAILED'} {what}: {note}", flush=True)

    def run(self) -> None:
        repository = self.folder / "models"
        write_models(repository, self.slos)
        planned = {model: HEADROOM * self.totals[-1] / len(self.models) for model in self.models}
        (self.folder / "plan.toml").write_text(demand_file(self.slos, planned, 10))
        arguments = [
            "--executor", self.o.executor, "--profiles", self.o.profiles, "--devices", "0", "--no-replan",
            "--demand", str(self.folder / "plan.toml"),
        ]  # fmt: skip
        with LiveServer(repository, self.folder / "serve.log", *arguments, env=self.env) as self.server:
            self.end = time.monotonic() + self.o.budget
            self.result |= {"ready_s": round(self.server.ready_s, 2), "note": self.server.document["note"]}
            self.result |= {"capacity": self.server.capacity(), "plan": self.server.plan()}
            self.result["about"] = self.server.ask("GET", "/v2")[1].get("parameters", {})
            print(f"ready after {self.server.ready_s:.1f} s: {self.server.document['note']}", flush=True)
            self.warm_up()
            for name in SECTIONS:
                if name in self.o.only.split(","):
                    self.section(name)

    def section(self, name: str) -> None:
        """One that fails does not keep the others from running."""
        if name != "ending" and time.monotonic() > self.end - NEEDED_S:
            self.result["left_out"][name] = "the budget is used up"
            print(f"left out: {name}: the budget is used up", flush=True)
            return
        try:
            getattr(self, name)()
        except Exception as error:  # noqa: BLE001  also what Triton's client raises
            self.check(name, False, f"{type(error).__name__}: {error}")

    def demands(self, rates: dict[str, float]) -> str:
        path = self.folder / "load.toml"
        path.write_text(demand_file(self.slos, rates, 10))
        return str(path)

    def even(self, total: float) -> dict[str, float]:
        return dict.fromkeys(self.models, total / len(self.models))

    def warm_up(self) -> None:
        """What is made at first requests is made now, and counted nowhere."""
        with background(self.server.http, self.demands(self.even(self.totals[0])), seconds=1.0) as load:
            load.result()

    def row(self, name: str, run: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """A run for the result, and as a line of the table; verdicts that apply to every run."""
        total = count(run, model)
        chosen = {name: each for name, each in run["models"].items() if model in {None, name}}
        slowest = max(chosen.values(), key=lambda each: each["p99_ms"] or 0.0)
        worst = min(each["attainment"] for each in chosen.values())
        cpu, seconds = run.get("cpu_s", {}), run["seconds"]
        self.lines.append(
            (
                name, f"{total.requests / seconds:.0f}", f"{total.answered / seconds:.0f}", f"{worst:.2%}",
                f"{slowest['p50_ms'] or 0:.2f}", f"{slowest['p99_ms'] or 0:.2f}", str(total.refused), str(total.lost),
                *(f"{cpu[who] / seconds:.2f}" if who in cpu else "" for who in ("server", "executors", "generator")),
                "doubtful" if run["bottleneck"] else "",
            )
        )  # fmt: skip
        if run["bottleneck"]:
            print(f"doubtful: {name}: {run['bottleneck']}", flush=True)
        everybody = count(run)
        self.check(
            f"{name}: all answered", everybody.lost == 0 and everybody.unaccounted == 0 and everybody.requests > 0,
            f"{everybody.requests} sent = {everybody.answered} answered + {everybody.refused} refused"
            f" + {everybody.lost} lost",
        )  # fmt: skip
        return {"name": name, "offered": total.requests / seconds, "lost": total.lost, "refused": total.refused} | run

    # The sections

    def totals_of(self, protocol: str) -> list[float]:
        return self.totals if protocol == "http" else [rate / 2 for rate in self.totals]

    def rates(self) -> None:
        found = self.result["rates"] = []
        for protocol, url in (("http", self.server.http), ("grpc", self.server.grpc)):
            for rate in self.totals_of(protocol):
                if time.monotonic() > self.end - NEEDED_S - self.o.seconds:
                    self.result["left_out"][f"{protocol} {rate:g}/s"] = "the budget is used up"
                    continue
                run = measured(self.server, url, self.demands(self.even(rate)), seconds=self.o.seconds)
                found.append(self.row(f"{protocol} {rate:g}/s", run))

    def overload(self) -> None:
        """On a server of its own, with a gpu-let so small that it is the GPU, not the frontend, that has too much."""
        model, other = self.models[:2]
        surface = self.known.models[model].surface
        fitting = [batch for batch in range(1, 33) if 2 * surface.latency(SMALL, batch) <= self.slos[model]]
        capacity = 1000 * fitting[-1] / surface.latency(SMALL, fitting[-1])
        repository = self.folder / "small"
        write_models(repository, {name: self.slos[name] for name in (model, other)}, shares={model: SMALL})
        arguments = ["--executor", self.o.executor, "--profiles", self.o.profiles, "--devices", "0"]
        runs = {}
        with LiveServer(repository, self.folder / "small.log", *arguments, env=self.env) as server:
            for name, rate in (("nearly full", 0.9 * capacity), ("overload", self.o.overload * capacity)):
                demands = self.demands({model: rate, other: BASE * self.totals[-1] / len(self.models)})
                run = measured(server, server.http, demands, "--connections", "4000", seconds=self.o.seconds)
                runs[name] = self.row(f"{name}, {model}", run, model)
        goodput = {name: run["models"][model]["goodput"] for name, run in runs.items()}
        self.result["overload"] = {
            "model": model, "sm": SMALL, "capacity": capacity, "offered": self.o.overload * capacity,
            "goodput": goodput, "runs": runs,
            "others_attainment": runs["overload"]["models"][other]["attainment"],
        }  # fmt: skip
        kept = goodput["overload"] / max(1e-9, goodput["nearly full"])
        self.check(
            "overload: goodput is kept", kept >= KEPT,
            f"{goodput['overload']:.0f}/s in time at {self.o.overload * capacity:.0f}/s,"
            f" {goodput['nearly full']:.0f}/s at {0.9 * capacity:.0f}/s",
        )  # fmt: skip
        refused = count(runs["overload"], model).refused
        self.check("overload: what is too much is refused", refused > 0, f"{refused} refusals")

    def clients(self) -> None:
        found = self.result["clients"] = {}
        for kind, address in (("http", self.server.document["http"]), ("grpc", self.server.document["grpc"])):
            told = found[kind] = triton_check.check(kind, address, self.models[0], BUILT_IN[self.models[0]])
            if "missing" in told:
                self.result["left_out"][f"tritonclient {kind}"] = told["missing"]
                print(f"left out: {told['missing']}", flush=True)
                continue
            held = told["twice_the_same"] and told["shared_memory_the_same"] and told["unknown_model_refused"]
            self.check(f"tritonclient {kind}", held, json.dumps(told))

    def killed(self) -> None:
        before = self.server.restarts()
        base = self.demands(self.even(BASE * self.totals[-1]))
        limit = min(AWAY_S, max(NEEDED_S, self.end - time.monotonic()))
        more = ("--every", f"{EVERY_S}s")
        with background(self.server.http, base, *more, seconds=limit + 2 * AFTER_S) as load:
            self.wait_for_load(load)
            time.sleep(AFTER_S)
            killed_at = time.time()
            self.server.executors()[0].kill()
            deadline = time.monotonic() + limit
            while self.server.restarts() <= before and time.monotonic() < deadline:
                time.sleep(0.05)
            restarted_s = time.time() - killed_at
            time.sleep(AFTER_S)
            load.stop()
            run = load.result()
        second = killed_at - run["began_unix_s"]
        back = {m: back_after(each["intervals"], EVERY_S, second) for m, each in run["models"].items()}
        self.result["killed"] = self.row("an executor killed", run) | {
            "killed_at_s": second, "restarted_after_s": restarted_s, "in_time_again_after_s": back,
        }  # fmt: skip
        self.check(
            "killed: it is back", self.server.restarts() > before and None not in back.values(),
            f"started again after {restarted_s:.2f} s; requests in time again after "
            + ", ".join(f"{'never' if s is None else f'{s:.2f} s'} ({model})" for model, s in back.items()),
        )  # fmt: skip

    def wait_for_load(self, load: Load) -> None:
        """Until its requests come. Raises ServerError."""

        def arrived() -> int:
            stats = self.server.ask("GET", "/v2/models/stats")[1]["model_stats"]
            return sum(each["gemlet"]["arrived"] for each in stats)

        before, deadline = arrived(), time.monotonic() + NEEDED_S
        while arrived() < before + len(self.models):
            if load.process.poll() is not None or time.monotonic() > deadline:
                raise ServerError("no request of gemlet load arrived")
            time.sleep(0.05)

    def reload(self) -> None:
        model = self.models[-1]
        base = self.demands(self.even(BASE * self.totals[-1]))
        took = {}
        with background(self.server.http, base, "--every", f"{EVERY_S}s", seconds=300.0) as load:
            self.wait_for_load(load)
            for step in ("unload", "load"):
                time.sleep(AFTER_S / 2)
                began = time.monotonic()
                status, note = self.server.ask("POST", f"/v2/repository/models/{model}/{step}")
                took[step] = round(time.monotonic() - began, 3)
                self.check(f"reload: {step}", status == 200, f"{took[step]:.2f} s {note or ''}")
            time.sleep(AFTER_S)
            load.stop()
            run = load.result()
        others = [each for name, each in run["models"].items() if name != model]
        quiet = [s.end - s.begin for each in others for s in silences(each["intervals"], EVERY_S)]
        self.result["reload"] = self.row(f"unload and load {model}", run) | {
            "took_s": took, "others_attainment": min((each["attainment"] for each in others), default=None),
            "others_longest_silence_s": max(quiet, default=0.0),
        }  # fmt: skip
        last = run["models"][model]["intervals"][-int(AFTER_S / 2 / EVERY_S) : -1]
        self.check(
            "reload: it serves again", sum(each["answered"] for each in last) > 0,
            f"{sum(each['answered'] for each in last)} of {sum(each['requests'] for each in last)} in the last second",
        )  # fmt: skip

    def ending(self) -> None:
        with background(self.server.http, self.demands(self.even(self.totals[0])), seconds=60.0) as load:
            self.wait_for_load(load)
            ending = self.server.end()
            load.stop()
            run = load.result()
        reasons = dict(count(run).reasons)
        self.result["ending"] = {
            "code": ending.code, "seconds": round(ending.seconds, 2), "left": ending.left, "reasons": reasons,
        }  # fmt: skip
        cut = sum(number for reason, number in reasons.items() if is_lost(reason) and not reason.startswith(CLOSED))
        closed = sum(number for reason, number in reasons.items() if is_lost(reason)) - cut
        refused = count(run).refused
        self.check(
            "ending: nobody is cut off", cut == 0,
            f"{cut} requests waited in vain; {refused} were refused, {closed} met a closed door",
        )  # fmt: skip
        self.check(
            "ending: SIGTERM", ending.code == 0 and ending.left == 0,
            f"exit code {ending.code} after {ending.seconds:.2f} s, {ending.left} executors left",
        )  # fmt: skip


def show(bench: Bench) -> None:
    header = (
        "run", "sent/s", "answered/s", "in time", "p50 ms", "p99 ms", "refused", "lost", "server", "executors",
        "generator", "",
    )  # fmt: skip
    print("\n".join(table(header, bench.lines, right=frozenset(header[1:-1]))))
    print("in time: of the worst model; p50, p99: of the model with the highest p99; the last three columns: cores")
    if bench.result["modelled"]:
        print("modelled time: no GPU was used")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="green", choices=["green", "mps", "streams", "modelled"])
    parser.add_argument("--profiles", default="h200", help="a name or a file; default h200")
    parser.add_argument("--models", default="bert,lenet1,resnet50,densenet161", help="of the catalogue, in this order")
    parser.add_argument(
        "--rates", type=positives, default="500,1000,2000,4000", help="requests/s of all models; over gRPC half of it"
    )
    parser.add_argument("--seconds", type=positive, default=8.0, help="of each run")
    parser.add_argument("--overload", type=positive, default=2.5, help="times what the gpu-let serves by its profile")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections: %(default)s")
    parser.add_argument(
        "--budget",
        type=positive,
        default=400.0,
        help="seconds from when it is ready; what would begin later is left out",
    )
    parser.add_argument("--quick", action="store_true", help="some 60 s: two rates, 3 s each")
    parser.add_argument("-o", "--output", type=output)
    o = parser.parse_args()
    if o.quick:
        o.seconds, o.rates, o.budget = min(o.seconds, 3.0), o.rates[1:3] or o.rates, min(o.budget, 75.0)
    if unknown := set(o.only.split(",")) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    models = o.models.split(",")
    known = profile_files.load_profiles(Path(o.profiles)).models
    if strange := [model for model in models if model not in BUILT_IN or model not in known]:
        parser.error(f"no model {', '.join(strange)} of the catalogue in these profiles")
    if len(set(models)) < max(2, len(models)):
        parser.error("--models: two at least, each once")
    end_on_signals()
    mps = mps_of_gemlet() if o.executor == "mps" else contextlib.nullcontext(dict(os.environ))
    with tempfile.TemporaryDirectory(prefix="gemlet-bench-") as folder, mps as env:
        bench = Bench(o, Path(folder), env)
        try:
            bench.run()
        finally:
            show(bench)
            if o.output:
                o.output.write_text(json.dumps(bench.result, indent=1) + "\n")
    return 0 if all(check["held"] for check in bench.result["checks"]) else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (GemletError, ServerError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
