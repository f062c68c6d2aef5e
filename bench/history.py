"""What the recorded history costs, with 50 groups: processor time a second, and bytes on disk after 90 days.

    python -m bench.history [--out DIR] [--groups 50] [--seconds 600] [--days 90]

Needs no GPU. Processor time is that of this process, which does nothing but what the daemon does for its history, as
fast as it can; so other work on the machine disturbs it little.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from bench.report import Report
from gemlet.daemon.history_moment import Moment, mean
from gemlet.daemon.history_recorder import Question, answer
from gemlet.daemon.history_sampling import Moments
from gemlet.daemon.history_store import DAY, TIERS, Store
from gemlet.daemon.native import ClientUsage, DeviceUsage, GroupUsage, Snapshot, uuid_text
from gemlet.daemon.status import ClientStatus, DaemonStatus, DeviceStatus, GroupStatus, Status

UUID = bytes(range(16))
SAMPLES = 10  # a second
START = 1_700_000_100
WHY = ("shares", "both busy", "ahead", "behind")


def moving(groups: int, chance: random.Random) -> tuple[Snapshot, Status]:
    """Groups with a client each, about as they are on a device that all of them use."""
    usages, statuses = [], []
    for number in range(groups):
        why, waiting = chance.choice(WHY), chance.randrange(2)
        usages.append(GroupUsage(name=f"g{number}", why=why, waiting=waiting, clients=(ClientUsage(id=number),)))
        client = ClientStatus(
            pid=number,
            uid=0,
            command="python",
            state="runs",
            memory=0,
            unledgered=0,
            launches=0,
            contexts=1,
            seconds=1.0,
        )
        statuses.append(
            GroupStatus(
                name=f"g{number}",
                min=1 / groups,
                origin="run",
                share={},
                target=chance.random() / groups,
                used_s=0.0,
                memory_limit=None,
                memory_used=chance.randrange(2**30, 2**34),
                unledgered=0,
                reason="",
                clients=(client,),
                speed=chance.random(),
            )
        )
    device = DeviceStatus(
        index=0,
        uuid=uuid_text(UUID),
        name="bench",
        policy="fair",
        memory_total=2**37,
        memory_used=2**36,
        utilization=0.97,
        share={},
        groups=tuple(statuses),
        power=512.3,
        temperature=61.0,
    )
    daemon = DaemonStatus(
        pid=1, version="", kind="user", directory="", config=None, policy="fair", uptime_s=0, denied=0, ignored=0
    )
    status = Status(simulated=True, daemon=daemon, devices=(device,), groups=(), events=())
    return Snapshot(devices=(DeviceUsage(uuid=UUID, groups=tuple(usages)),)), status


def advanced(status: Status, chance: random.Random) -> Status:
    """A second later."""
    [device] = status.devices
    groups = tuple(
        replace(
            group,
            used_s=group.used_s + chance.random() * 2 / len(device.groups),
            throttled_s=group.throttled_s + chance.choice((0, 0, 0, chance.random())),
        )
        for group in device.groups
    )
    return msgspec.structs.replace(status, devices=(msgspec.structs.replace(device, groups=groups),))


def cost(store: Store, groups: int, seconds: int) -> float:
    """Processor time a second."""
    chance = random.Random(1)
    snapshot, status = moving(groups, chance)
    made = Moments()
    spent, waiting = 0.0, {}
    for second in range(seconds):
        status = advanced(status, chance)
        begin = time.process_time()
        for _ in range(SAMPLES):
            made.look(snapshot)
        waiting[START + second] = made.take(status, float(second))
        if len(waiting) == 5:
            store.add(waiting)
            waiting = {}
        spent += time.process_time() - begin
    return spent / seconds


def fill(store: Store, groups: int, days: int) -> None:
    """The file as it is after ``days``: tiers full of what `cost` made, shuffled, so that no two moments are alike."""
    connection = store._connection
    made = [moment for _, moment in store.moments(TIERS[0], 0, 2**40)]
    chance = random.Random(2)
    now = int(time.time())
    with connection:
        for tier in TIERS:
            connection.execute(f"DELETE FROM {tier.table}")
            keep = min(tier.keep, days * DAY)
            for at in range(now - keep + tier.step, now + 1, tier.step):
                moment = mean([chance.choice(made), chance.choice(made)]) if tier.step > 1 else chance.choice(made)
                rows = list(moment.groups.values())
                chance.shuffle(rows)
                kept = Moment(dict(zip(moment.groups, rows, strict=True)), moment.devices)
                connection.execute(
                    f"INSERT INTO {tier.table} VALUES (?, ?)", (at // tier.step * tier.step, kept.pack())
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--days", type=int, default=90)
    given = parser.parse_args()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    about = {"device": "none", "groups": given.groups}
    report = Report(about, given.out / "history.json" if given.out else None)
    with tempfile.TemporaryDirectory(prefix="gemlet-history-") as directory:
        store = Store(Path(directory, "history.db"))
        spent = cost(store, given.groups, given.seconds)
        report.add("recording: processor time, % of a core", 100 * spent, "<= 0.5")
        fill(store, given.groups, given.days)
        report.add(f"its file after {given.days} days: MB", store.size() / 1e6, "<= 50")
        now = time.time()
        for name, since in (("1 hour", 3600), ("1 day", DAY), (f"{given.days} days", given.days * DAY)):
            begin = time.process_time()
            answer(store, Question(group="g7", since=now - since, until=now, points=600))
            report.add(f"an answer about one group over {name}: ms", 1000 * (time.process_time() - begin))
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
