"""gemlet beside a real Triton on this machine, without a GPU: one Python model, one client for both.

    make triton-test                                         once: it installs Triton and perf_analyzer
    .venv/bin/python -m bench.beside_triton                  five rounds; medians
    .venv/bin/python -m bench.beside_triton --rounds 1 --json

The client is NVIDIA's perf_analyzer, written in C++, from the wheel of tritonclient; the model is `simple` of
tests/triton/repository, two inputs and two outputs of 16 numbers. Rounds alternate between servers, protocols and
numbers of requests at a time, so that other work on the machine falls on all. `echo` is no server: it gives the same
bytes each time (bench.echo_server), which is what Python's fastest event loop makes possible.

of Triton  the median, least and highest of what a server's rate is of Triton's in the same round
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
from pathlib import Path

import psutil

from bench.echo_server import echo
from bench.live_server import children, processor_seconds
from tests.e2e.serve_process import serving
from tests.triton import perf_analyzer, probes
from tests.triton.triton_server import INSTALLED, triton

MODEL = "simple"
AT_A_TIME = (1, 16, 64)


Key = tuple[str, int, str]  # protocol, requests at a time, server


def rows(rounds: int, requests: int, at_a_time: tuple[int, ...]) -> list[dict[str, object]]:
    found: dict[Key, list[tuple[float, float, float]]] = {}
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
            # Its process, its address by protocol, and its address over HTTP.
            cases = {
                ("grpc", "triton"): (theirs, grpc, http),
                ("grpc", "gemlet"): (ours, server.grpc, server.http),
                ("http", "triton"): (theirs, http, http),
                ("http", "gemlet"): (ours, server.http, server.http),
                ("http", "echo"): (it, nothing, nothing),
            }
            for _ in range(rounds):
                for number in at_a_time:
                    for (protocol, which), (process, address, asked) in cases.items():
                        before = _used(process), _count(asked)
                        row = perf_analyzer.measured(protocol, address, MODEL, at_a_time=number, requests=requests)
                        cpu = (_used(process) - before[0]) / max(1, _count(asked) - before[1])
                        one = float(row["Inferences/Second"]), float(row["p99 latency"]), cpu
                        found.setdefault((protocol, number, which), []).append(one)
    return [
        {
            "protocol": protocol, "at_a_time": number, "server": which,
            "rate": round(statistics.median(rate for rate, _, _ in each)),
            "p99_us": round(statistics.median(p99 for _, p99, _ in each)),
            "cpu_us": round(1e6 * statistics.median(cpu for _, _, cpu in each)),
            "of_triton": _quotients(each, found[protocol, number, "triton"]),
        }
        for (protocol, number, which), each in found.items()
    ]  # fmt: skip


def _quotients(
    ours: list[tuple[float, float, float]], theirs: list[tuple[float, float, float]]
) -> tuple[float, float, float]:
    """Of the rates in the same rounds: median, least, highest."""
    found = sorted(a[0] / b[0] for a, b in zip(ours, theirs, strict=True))
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
        print(json.dumps({"schema": 2, "rounds": given.rounds, "cases": found}, indent=1))
        return 0
    print("protocol  at a time  server  requests/s      p99      cpu  of Triton")
    for row in found:
        words = "{protocol:8}{at_a_time:>11}  {server:6}{rate:>12}{p99_us:>6} us{cpu_us:>6} us"
        print(words.format_map(row), "{:10.2f} ({:.2f} to {:.2f})".format(*row["of_triton"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
