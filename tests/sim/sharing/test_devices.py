"""Several devices: a token, a ledger and a limit each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import scenarios, simulated
from tests.waiting import eventually

GIB, MIB = 1 << 30, 1 << 20


def test_one_program_on_two_devices(tmp_path: Path) -> None:
    machine = simulated.machine(tmp_path, devices=2)
    with scenarios.Sharing(machine) as sharing:
        sharing.group("both", memory=4 * GIB)
        program = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "two_devices.py"],
            env=sharing.env("both"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert program.stdout
        seen = [[int(n) for n in program.stdout.readline().split()] for _ in range(2)]

        def reported() -> dict[int, Any]:
            """By device, once the counters of both have come: the program sends them after its work."""
            found = {d["index"]: d["groups"][0] for d in sharing.server.snapshot()["devices"] if d["groups"]}
            clients = [client for group in found.values() for client in group["clients"]]
            return found if sum(client["launches"] >= 50 for client in clients) == 2 else {}

        devices = eventually(reported)
        program.communicate("\n", timeout=120)
    assert program.returncode == 0
    assert set(devices) == {0, 1}
    for ordinal, group in devices.items():
        (client,) = group["clients"]
        assert client["launches"] >= 50
        assert client["memory"] == (ordinal + 1) * 256 * MIB
        assert group["used_ns"] >= 50 * 200_000 * 0.8
        total, used = seen[ordinal]
        assert total == 4 * GIB
        assert used >= (ordinal + 1) * 256 * MIB
