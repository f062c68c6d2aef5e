"""Two saturating clients and every step between them and the arbiter: for finding out why somebody waited.

    python bench/timeline.py [--simulate] [--shares 0.5,0.5] [--seconds 4] [--kernel-us 100] [--all]

Prints how long hand-overs took by phase, and the steps around every pause in which nobody held the token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from machine import Client, Machine, Sharing


def print_step(begin: int, at: int, group: str, client: int, what: str, value: int) -> None:
    is_time = what in ("grant", "update", "revoke", "drained") and value > 0
    relative = f"in {(value - at) / 1e6:.2f} ms" if is_time else value
    print(f"   {(at - begin) / 1e6:10.3f} {group} {client} {what} {relative}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--shares", default="0.5,0.5")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--kernel-us", type=float, default=100)
    parser.add_argument("--lead", type=int, default=250_000)
    parser.add_argument("--all", action="store_true")
    o = parser.parse_args()
    shares = [float(s) for s in o.shares.split(",")]
    with tempfile.TemporaryDirectory() as workdir:
        m = Machine(simulate=o.simulate, workdir=Path(workdir))
        work = ["work", "--kernel-us", str(o.kernel_us), "--batch", str(max(1, round(1000 / o.kernel_us)))]
        work += ["--scale", str(m.scale(o.kernel_us, "large"))]
        (alone,) = m.run([Client(work)], None, 2)
        rate = alone.result["work_s"] / 2
        with Sharing(m, trace=1_000_000, lead=o.lead) as sharing:
            clients = []
            for i, s in enumerate(shares):
                sharing.group(f"g{i}", min=s)
                clients.append(Client(work, f"g{i}"))
            m.run(clients, sharing, o.seconds)
            trace, used = sharing.server.take_trace(), sharing.used()
    for c, promise in zip(clients, shares, strict=True):
        gaps = sorted(((round(b[0] - a[0], 4), round(a[0], 3)) for a, b in pairwise(c.done)), reverse=True)
        share, done = c.work_between(0, o.seconds) / rate / o.seconds, c.done[-1][1] / rate
        charged = used[c.group or ""]
        print(c.group, f"share {share:.4f} charged {charged:.3f} done {done:.3f} longest gaps {gaps[:5]}")
        steps = [t / 20 for t in range(int(20 * (o.seconds - 1)) + 1)]
        errors = {t: c.work_between(t, t + 1) / rate - promise for t in steps}
        at = max(errors, key=lambda t: abs(errors[t]))
        print(f"   worst second: from {at:.2f} s, off by {errors[at]:+.4f}")
    begin = trace[0][0]
    grants, quanta, tails, to_drain, to_want = 0, [], [], [], []
    granted: dict[int, int] = {}
    stopped: dict[int, int] = {}
    for at, _, client, what, value in trace:
        if what == "grant":
            grants += 1
            granted[client] = at
        elif what == "stopped":
            tails.append(value / 1000)
            if client in granted:
                quanta.append((at - granted[client]) / 1e6)
            stopped[client] = at
        elif what == "drained" and client in stopped:
            to_drain.append((value - stopped[client]) / 1000)
        elif what == "want" and client in stopped:
            to_want.append((at - stopped[client]) / 1000)
    phases = {"quantum ms": quanta, "tail told us": tails, "stop to drained us": to_drain, "stop to want us": to_want}
    for name, values in phases.items():
        if len(values) > 10:
            q = statistics.quantiles(values, n=100)
            parts = "".join(f" p{n} {q[n - 1]:9.1f}" for n in (10, 50, 90, 99))
            print(f"{name:20} n {len(values):5}{parts} max {max(values):9.1f}")
    last_at = begin
    for i, (at, *_) in enumerate(trace):
        if at - last_at > 60e6 and i > 40:
            print(f"--- nothing for {(at - last_at) / 1e6:.0f} ms")
            for t, group, client, what, value in trace[max(0, i - 12) : i + 6]:
                print_step(begin, t, group, client, what, value)
        last_at = at
    if o.all:
        for t, group, client, what, value in trace:
            print_step(begin, t, group, client, what, value)


if __name__ == "__main__":
    main()
