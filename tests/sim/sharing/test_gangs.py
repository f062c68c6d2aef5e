"""Jobs whose ranks wait for each other on several devices, through the real hook and the real server."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import scenarios, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.scenarios import Machine

STEPS = 60
LIMIT = 240  # seconds; a deadlock would last for ever
PATIENCE_NS = 10**12


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return simulated.machine(tmp_path, devices=3)


@pytest.fixture
def sharing(machine: Machine) -> Iterator[scenarios.Sharing]:
    with scenarios.Sharing(machine) as shared:
        yield shared


class Job:
    """Its ranks, one on each of the devices."""

    def __init__(
        self,
        sharing: scenarios.Sharing,
        folder: Path,
        name: str,
        devices: Sequence[int],
        *,
        steps: int = STEPS,
        kernels: str = "long",
    ):
        # Taking turns at all times makes the most of every deadlock that there is.
        sharing.group(name, gang="on", workload="alone")
        word = folder / f"{name}.word"
        word.write_bytes(bytes(8))
        program = [sys.executable, Path(__file__).parent / "rank.py"]
        self.ranks = [
            subprocess.Popen(
                [*program, *map(str, (device, len(devices), steps)), word, kernels],
                env=sharing.env(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for device in devices
        ]  # fmt: skip

    def begin(self) -> None:
        for rank in self.ranks:
            assert rank.stdout
            assert rank.stdout.readline() == "begins\n"
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.write("\n")
            rank.stdin.flush()

    def end(self) -> None:
        for rank in self.ranks:
            out, _ = rank.communicate(timeout=LIMIT)
            assert out == "ends\n"
            assert rank.returncode == 0

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


def test_jobs_that_cross_come_to_their_ends(sharing: scenarios.Sharing, tmp_path: Path) -> None:
    jobs = [Job(sharing, tmp_path, name, on) for name, on in (("a", (0, 1)), ("b", (1, 2)), ("c", (0, 2)))]
    try:
        for job in jobs:
            job.begin()
        for job in jobs:
            job.end()
    finally:
        for job in jobs:
            job.kill()


def test_ends_of_slots_need_no_patience(machine: Machine, tmp_path: Path) -> None:
    """Ranks stop with unlike numbers of collectives in flight, and none of these is left behind: it would be in the
    way of the next slot. Before, some were at nearly every end. A rank that goes on stops by itself when it has
    submitted what its peer waits for."""
    with scenarios.Sharing(machine, finish=PATIENCE_NS, trace=100_000) as sharing:
        jobs = [Job(sharing, tmp_path, name, (0, 1), steps=20_000, kernels="short") for name in ("a", "b")]
        try:
            for job in jobs:
                job.begin()
            for job in jobs:
                job.end()
        finally:
            for job in jobs:
                job.kill()
        went_on: set[int] = set()  # clients, in a turn after their slot
        ends: list[str] = []
        for at, _, client, what, value in sharing.trace():
            if what == "grant" and value - at > PATIENCE_NS / 2:
                went_on.add(client)
            elif what.startswith("stopped") and client in went_on:
                went_on.remove(client)
                ends.append(what)
        assert ends.count("stopped: deadline") > ends.count("stopped: revoked")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_is_gone_stops_nobody_else(sharing: scenarios.Sharing, tmp_path: Path, how: signal.Signals) -> None:
    hangs, ends = (Job(sharing, tmp_path, "hangs", (0, 1), steps=10**6), Job(sharing, tmp_path, "ends", (0, 1)))
    try:
        for job in (hangs, ends):
            job.begin()
        hangs.ranks[1].send_signal(how)
        ends.end()
    finally:
        for job in (hangs, ends):
            job.kill()
