"""What it takes to wait for hundreds of groups after a daemon was killed, which users can have by naming groups. In the
processor's time.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.server import wire
from tests.unit.server.conftest import native
from tests.unit.server.test_succession import DEVICE

ROUNDS = 10
THREADS = Path("/proc/self/task")


def cost(count: int, socket: Path) -> int:
    """Nanoseconds of some rounds of looks at ``count`` groups of a program each that lives and does not come."""
    server = native.Server(lost_rounds=ROUNDS)
    process = os.pidfd_open(os.getpid())
    slot = {
        "index": 0, "pid": os.getpid(), "uid": os.getuid(), "started": 1, "fd": process, "who": "", "contexts": 0,
        "administrator": True, "used": 1, "untracked": 0, "fixed": 0, "movable": 0, "mapped": 0, "before": 0,
    }  # fmt: skip
    for number in range(count):
        server.inherit_ledger({
            "device": DEVICE, "index": 0, "context_estimate": 0, "group": f"g{number}", "fd": -1, "slots": [slot],
            "number": 1 + number,
        })  # fmt: skip
    before = set(THREADS.iterdir())
    server.listen(str(socket))
    server.start()
    try:
        [thread] = set(THREADS.iterdir()) - before
        wire.eventually(server.knows_members)
        return int((thread / "schedstat").read_text().split()[0])
    finally:
        server.stop()
        os.close(process)


def test_sixteen_times_as_many_groups_take_no_more_than_as_many_times_as_long(tmp_path: Path) -> None:
    few = min(cost(50, tmp_path / "few") for _ in range(2))
    many = min(cost(800, tmp_path / "many") for _ in range(2))
    assert many < 16 * few, (few, many)  # what looks at all programs for each group takes 45 times as long
