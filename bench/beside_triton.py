"""gemlet beside a real Triton on this machine, without a GPU: one Python model, one client for both.

    make triton-test                                         once: it installs Triton and perf_analyzer
    .venv/bin/python -m bench.beside_triton                  five rounds; medians
    .venv/bin/python -m bench.beside_triton --rounds 1 --json

The client is NVIDIA's perf_analyzer, written in C++, from the wheel of tritonclient; the model is `simple` of
tests/triton/repository, two inputs and two outputs of 16 numbers. Rounds alternate between servers, protocols and
numbers of requests at a time, so that other work on the machine falls on all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.e2e.serve_process import serving
from tests.triton import perf_analyzer, probes
from tests.triton.triton_server import INSTALLED, triton

MODEL = "simple"
AT_A_TIME = (1, 16, 64)


def rows(rounds: int, requests: int) -> list[dict[str, object]]:
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(probes.REPOSITORY / MODEL, folder / "models" / MODEL)
        (folder / "triton").mkdir()
        with (
            triton(folder / "models", folder / "triton") as (http, grpc, _),
            serving(folder / "models", folder / "log") as server,
        ):
            addresses = {
                ("grpc", "triton"): grpc,
                ("grpc", "gemlet"): server.grpc,
                ("http", "triton"): http,
                ("http", "gemlet"): server.http,
            }
            for _ in range(rounds):
                for at_a_time in AT_A_TIME:
                    for (protocol, which), address in addresses.items():
                        row = perf_analyzer.measured(protocol, address, MODEL, at_a_time=at_a_time, requests=requests)
                        one = float(row["Inferences/Second"]), float(row["p99 latency"])
                        found.setdefault((protocol, at_a_time, which), []).append(one)
    return [
        {
            "protocol": protocol, "at_a_time": at_a_time, "server": which,
            "rate": round(statistics.median(rate for rate, _ in each)),
            "p99_us": round(statistics.median(p99 for _, p99 in each)),
        }
        for (protocol, at_a_time, which), each in found.items()
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000, help="of each measurement, of which there are three")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not INSTALLED.exists() or not perf_analyzer.THERE:
        print("error: there is no Triton or no perf_analyzer in build/triton", file=sys.stderr)
        print("hint: make triton-test", file=sys.stderr)
        return 1
    found = rows(given.rounds, given.requests)
    if given.json:
        print(json.dumps({"schema": 1, "rounds": given.rounds, "cases": found}, indent=1))
        return 0
    print("protocol  at a time  server  requests/s      p99")
    for row in found:
        print("{protocol:8}{at_a_time:>11}  {server:6}{rate:>12}{p99_us:>9} us".format_map(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
