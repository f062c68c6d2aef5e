"""gemlet beside a real Triton on this machine, without a GPU: one Python model, one client for both.

    make triton-test                                         once: it installs Triton and perf_analyzer
    .venv/bin/python -m bench.beside_triton                  five rounds; medians
    .venv/bin/python -m bench.beside_triton --rounds 1 --json

The client is NVIDIA's perf_analyzer, written in C++, from the wheel of tritonclient; the model is `simple` of
tests/triton/repository, two inputs and two outputs of 16 numbers. Rounds alternate between servers, protocols and
numbers of requests at a time, so that other work on the machine falls on all. `echo` is no server: it gives the same
bytes each time (bench.echo_server), which is what Python's fastest event loop makes possible.

half       Poisson arrivals at half of what the slower of the two servers carried just before, with the most requests at
           a time; the same rate for both: how long requests take where neither is full
of Triton  the median, least and highest of what a server's rate is of Triton's in the same round; at half load what its
           p99 is of Triton's
cpu        microseconds of a processor for each request, all processes of a server together, which other work on the
           machine changes less than rates
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.echo_server import echo
from bench.live_server import children, processor_seconds
from tests.e2e.serve_process import serving
from tests.triton import perf_analyzer, probes
from tests.triton.triton_server import INSTALLED, triton

MODEL = "simple"
AT_A_TIME = (1, 16, 64)
COMPARED = ("triton", "gemlet")

HALF = "half"
Key = tuple[str, str, str]  # protocol, load: requests at a time or HALF, server


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of perf_analyzer: requests/s, microseconds, and seconds of a processor for each request."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Server:
    """Its process, its address by a protocol, and that over HTTP."""

    process: psutil.Process
    address: str
    asked: str

    def under(self, protocol: str, requests: int, *, at_a_time: int = 1, rate: float | None = None) -> Measured:
        before = _used(self.process), _count(self.asked)
        row = perf_analyzer.measured(protocol, self.address, MODEL, at_a_time=at_a_time, rate=rate, requests=requests)
        cpu = (_used(self.process) - before[0]) / max(1, _count(self.asked) - before[1])
        return Measured(float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]), cpu)


def rows(rounds: int, requests: int, at_a_time: tuple[int, ...]) -> list[dict[str, object]]:
    found: dict[Key, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(probes.REPOSITORY / MODEL, folder / "models" / MODEL)
        (folder / "triton").mkdir()
        with (
            triton(folder / "models", folder / "triton") as (http, grpc, _),
            serving(folder / "models", folder / "log") as server,
            echo(server.http) as (nothing, pid),
        ):
            theirs = next(each for each in psutil.Process().children() if each.name() == "tritonserver")
            ours, it = psutil.Process(server.process.pid), psutil.Process(pid)
            cases = {
                ("grpc", "triton"): Server(theirs, grpc, http),
                ("grpc", "gemlet"): Server(ours, server.grpc, server.http),
                ("http", "triton"): Server(theirs, http, http),
                ("http", "gemlet"): Server(ours, server.http, server.http),
                ("http", "echo"): Server(it, nothing, nothing),
            }
            for _ in range(rounds):
                for number in at_a_time:
                    for (protocol, which), one in cases.items():
                        full = one.under(protocol, requests, at_a_time=number)
                        found.setdefault((protocol, str(number), which), []).append(full)
                for protocol in ("grpc", "http"):
                    most = str(max(at_a_time))
                    half = min(found[protocol, most, which][-1].rate for which in COMPARED) / 2
                    for which in COMPARED:
                        seen = cases[protocol, which].under(protocol, requests, rate=half)
                        found.setdefault((protocol, HALF, which), []).append(seen)
    return told(found)


def told(found: dict[Key, list[Measured]]) -> list[dict[str, object]]:
    """Medians, and what each server's are of Triton's in the same round."""
    return [
        {
            "protocol": protocol, "load": load, "server": which,
            "rate": round(statistics.median(one.rate for one in each)),
            "p50_us": round(statistics.median(one.p50_us for one in each)),
            "p99_us": round(statistics.median(one.p99_us for one in each)),
            "cpu_us": round(1e6 * statistics.median(one.cpu_s for one in each)),
            "of_triton": _quotients(each, found[protocol, load, "triton"], late=load == HALF),
        }
        for (protocol, load, which), each in found.items()
    ]  # fmt: skip


def _quotients(ours: list[Measured], theirs: list[Measured], *, late: bool) -> tuple[float, float, float]:
    """Of the rates, or where it is ``late`` that counts of the p99, in the same rounds: median, least, highest."""
    pairs = zip(ours, theirs, strict=True)
    found = sorted(a.p99_us / b.p99_us if late else a.rate / b.rate for a, b in pairs)
    return round(statistics.median(found), 2), round(found[0], 2), round(found[-1], 2)


def _used(process: psutil.Process) -> float:
    """Processor seconds of it and its children."""
    return sum(processor_seconds(each) for each in (process, *children(process)))


def _count(address: str) -> int:
    """Requests that it has executed."""
    with urllib.request.urlopen(f"http://{address}/v2/models/{MODEL}/stats") as reply:
        return int(json.load(reply)["model_stats"][0]["inference_count"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000, help="of each measurement, of which there are three")
    parser.add_argument("--at-a-time", default=",".join(map(str, AT_A_TIME)), help="requests; default %(default)s")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not INSTALLED.exists() or not perf_analyzer.THERE:
        print("error: there is no Triton or no perf_analyzer in build/triton", file=sys.stderr)
        print("hint: make triton-test", file=sys.stderr)
        return 1
    found = rows(given.rounds, given.requests, tuple(map(int, given.at_a_time.split(","))))
    if given.json:
        print(json.dumps({"schema": 3, "rounds": given.rounds, "cases": found}, indent=1))
        return 0
    print("protocol       load  server  requests/s       p50       p99      cpu  of Triton")
    for row in found:
        words = "{protocol:8}{load:>11}  {server:6}{rate:>12}{p50_us:>7} us{p99_us:>7} us{cpu_us:>6} us"
        print(words.format_map(row), "{:10.2f} ({:.2f} to {:.2f})".format(*row["of_triton"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
