"""What must hold on any machine, simulated or real; tests/sim/sharing and tests/gpu run it with their own floors.

Shares are counted in completed work. On the simulated machine the host's own load disturbs the clients, so its floors
are loose and a scenario is tried up to three times; on a GPU they are those of the README.
"""

from __future__ import annotations

import statistics

from bench.machine import Client, Machine, Sharing
from bench.windows import worst_window

SECONDS = 3.0


def work(machine: Machine, kernel_us: float = 100, *extra: str) -> list[str]:
    batch = str(max(1, round(1000 / kernel_us)))
    scale = str(machine.scale(kernel_us, "large"))
    return ["work", "--kernel-us", str(kernel_us), "--batch", batch, "--scale", scale, *extra]


def exclusive_rate(machine: Machine, args: list[str]) -> float:
    (client,) = machine.run([Client(args)], None, 2.0)
    return client.result["work_s"] / client.result["seconds"]


def two_groups(machine: Machine, first: float, *, kernel_us: float = 100) -> tuple[float, float]:
    """Total of two saturating groups with minima ``first`` and the rest, and the worst 1 s window's error."""
    args = work(machine, kernel_us)
    rate = exclusive_rate(machine, args)
    promises = (first, 1 - first)
    with Sharing(machine) as sharing:
        clients = []
        for name, promise in zip("ab", promises, strict=True):
            sharing.group(name, min=promise)
            clients.append(Client(args, name))
        machine.run(clients, sharing, SECONDS)
    total = sum(c.work_between(0, SECONDS) for c in clients) / (SECONDS * rate)
    return total, max(worst_window(c.done, p, rate, 0, SECONDS) for c, p in zip(clients, promises, strict=True))


def launch_bound(machine: Machine, groups: int = 2, *, kernel_us: float, gap_us: float) -> float:
    """Work of groups that pause on the host after each launch, in their last second, over that of one alone."""
    args = [*work(machine, kernel_us), "--gap-us", str(gap_us)]
    rate = exclusive_rate(machine, args)
    with Sharing(machine) as sharing:
        clients = []
        for name in "abcdefgh"[:groups]:
            sharing.group(name)
            clients.append(Client(args, name))
        machine.run(clients, sharing, 2 * SECONDS)
    return sum(c.work_between(2 * SECONDS - 1, 2 * SECONDS) for c in clients) / rate


def capped(machine: Machine, cap: float, *, kernel_us: float = 100) -> float:
    """The worst 1 s window's error of a group alone under a maximum, from the first second on."""
    args = work(machine, kernel_us)
    rate = exclusive_rate(machine, args)
    with Sharing(machine) as sharing:
        sharing.group("a", max=cap)
        (client,) = machine.run([Client(args, "a")], sharing, SECONDS)
    return worst_window(client.done, cap, rate, 0, SECONDS)


def alone(machine: Machine) -> float:
    """Throughput under the hook over native, nobody else there: median of three pairs."""
    args = work(machine)
    ratios = []
    for _ in range(3):
        native = exclusive_rate(machine, args)
        with Sharing(machine) as sharing:
            (client,) = machine.run([Client(args, "a")], sharing, 2.0)
        ratios.append(client.result["work_s"] / client.result["seconds"] / native)
    return statistics.median(ratios)


def arrival(machine: Machine) -> tuple[float, float]:
    """A group with min 0.7 comes after 1 s and leaves after 2: the other's share while it is there and after it."""
    args = work(machine)
    rate = exclusive_rate(machine, args)
    with Sharing(machine) as sharing:
        sharing.group("a", min=0.3)
        sharing.group("b", min=0.7)
        a, b = Client(args, "a"), Client([*args, "--seconds", "1"], "b", begin=1.0)
        machine.run([a, b], sharing, SECONDS)
    return a.work_between(1.1, 2.0) / (0.9 * rate), a.work_between(2.1, 3.0) / (0.9 * rate)
