"""How long the arbiter thinks at a hand-over: from the holder's stop to the next grant, measured inside C++.

python -m bench.arbiter_latency [--decisions 20000]
"""

from __future__ import annotations

import argparse
import platform

from gemlet._native import decision_cost
from gemlet.simulate.report import percentile


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the arbiter thinks at a hand-over.")
    parser.add_argument("--decisions", type=int, default=20_000)
    decisions = parser.parse_args().decisions
    print(f"{platform.processor() or platform.machine()}, {decisions} decisions each, nanoseconds")
    print(f"{'policy':8}{'clients':>8}{'groups':>8}{'p50':>10}{'p99':>10}")
    for policy in ("fair", "fifo"):
        for clients, groups in ((2, 2), (8, 8), (64, 8), (64, 64), (500, 50), (500, 500)):
            costs = decision_cost(policy, clients=clients, groups=groups, decisions=decisions)
            print(f"{policy:8}{clients:>8}{groups:>8}{percentile(costs, 0.5):>10.0f}{percentile(costs, 0.99):>10.0f}")


if __name__ == "__main__":
    main()
