"""A status document with something of everything in it."""

from __future__ import annotations

from gemlet.daemon.events import Event
from gemlet.daemon.latency import Latency
from gemlet.daemon.mps_state import MpsClient, MpsServer, MpsStatus
from gemlet.daemon.status import ClientStatus, DaemonStatus, DeviceStatus, GroupLimits, GroupStatus, Status
from gemlet.daemon.totals import LabelStatus

GIB = 1 << 30


def group(name: str, share: float, *, clients: int = 0, reason: str = "") -> GroupStatus:
    return GroupStatus(
        name=name,
        min=0.3,
        max=0.6,
        weight=1.0,
        priority="normal",
        origin="run",
        share={"1s": share, "10s": share, "60s": None},
        target=0.5,
        speed=0.98,
        used_s=12.5,
        memory_limit=8 * GIB if clients else None,
        memory_used=3 * GIB,
        unledgered=GIB // 2,
        reason=reason,
        programs=clients,
        clients=tuple(
            ClientStatus(
                pid=4242 + number,
                uid=1000,
                command="python",
                name="train.py",
                user="ana",
                started=1_700_000_000.0,
                state="runs",
                memory=2 * GIB,
                memory_used=5 * GIB // 2,
                unledgered=GIB // 2,
                launches=1234,
                contexts=1,
                seconds=60.0,
            )
            for number in range(clients)
        ),
    )


def label(name: str, *, requests: bool = False) -> LabelStatus:
    took = Latency(requests=5, sum_s=0.5, p50_s=0.09, p99_s=0.12, buckets=((0.1, 3), (0.2, 5)))
    return LabelStatus(
        device=0,
        uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
        label=name,
        groups=(name,),
        used_s=12.5,
        busy_s=13.0,
        throttled_s=1.0,
        launches=1234,
        latency=took if requests else None,
    )


def limits(name: str, clients: int) -> GroupLimits:
    return GroupLimits(
        name=name,
        min=0.3,
        max=0.6,
        weight=1.0,
        sm=1.0,
        priority="normal",
        memory=8 * GIB,
        users=(),
        origin="run",
        owner=1000,
        device=None,
        clients=clients,
    )


def example() -> Status:
    groups = (group("batch", 0.2), group("team", 0.421, clients=1, reason="below its minimum"))
    return Status(
        simulated=False,
        daemon=DaemonStatus(
            pid=99,
            version="0.1.0",
            kind="user",
            directory="/run/user/1000/gemlet",
            config=None,
            policy="fair",
            uptime_s=100.0,
            denied=2,
            ignored=3,
        ),
        devices=(
            DeviceStatus(
                index=0,
                uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
                name="Fake H200",
                policy="fair",
                memory_total=150 * GIB,
                memory_used=10 * GIB,
                utilization=0.93,
                power=512.5,
                temperature=61.0,
                clock=1980,
                share={"1s": 0.621, "10s": 0.621, "60s": 0.0},
                groups=groups,
                used_s=25.5,
                busy_s=26.5,
            ),
        ),
        labels=(label("batch"), label("team", requests=True)),
        groups=(limits("batch", 0), limits("team", 1)),
        events=(
            Event(number=1, time=0.0, kind="join", group="team", pid=4242, command="train"),
            Event(number=2, time=1.0, kind="refused", group="team", pid=4242, command="train", text="6 GiB too much"),
        ),
    )


def mps_example() -> MpsStatus:
    client = MpsClient(pid=4242, uid=1000, command="train", group="team")
    return MpsStatus(
        state="on",
        pid=815,
        pipe_directory="/run/mps/pipe",
        log_directory="/run/mps/log",
        servers=(MpsServer(pid=816, uid=1000, status="ACTIVE", clients=(client,)),),
    )
