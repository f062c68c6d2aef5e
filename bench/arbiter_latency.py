"""How long the arbiter thinks at a hand-over: from the holder's stop to the next grant, measured by arbiter_cost.cpp.

python -m bench.arbiter_latency [--decisions 20000]
"""

from __future__ import annotations

import argparse
import itertools
import platform
import subprocess
import tempfile
from pathlib import Path

from gemlet.simulate.report import percentile

ROOT = Path(__file__).parents[1]
SIZES = ((2, 2), (8, 8), (64, 8), (64, 64), (500, 50), (500, 500))  # clients, groups


def built(folder: Path) -> Path:
    """The program, with the arbiter's own sources."""
    program = folder / "arbiter_cost"
    sources = [ROOT / "bench/arbiter_cost.cpp", *sorted((ROOT / "native/arbiter").rglob("*.cpp"))]
    command = ["c++", "-O2", "-std=c++20", "-I", ROOT / "native", "-o", program, *sources]
    subprocess.run(list(map(str, command)), check=True)
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the arbiter thinks at a hand-over.")
    parser.add_argument("--decisions", type=int, default=20_000)
    decisions = parser.parse_args().decisions
    print(f"{platform.processor() or platform.machine()}, {decisions} decisions each, nanoseconds")
    print(f"{'policy':8}{'clients':>8}{'groups':>8}{'p50':>10}{'p99':>10}")
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        for policy, (clients, groups) in itertools.product(("fair", "fifo"), SIZES):
            arguments = map(str, (program, policy, clients, groups, decisions))
            costs = [int(line) for line in subprocess.check_output(list(arguments)).split()]
            row = f"{policy:8}{clients:>8}{groups:>8}"
            print(f"{row}{percentile(costs, 0.5):>10.0f}{percentile(costs, 0.99):>10.0f}", flush=True)


if __name__ == "__main__":
    main()
