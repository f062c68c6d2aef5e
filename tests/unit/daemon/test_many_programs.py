"""What thousands of programs of one user cost the others: counted, and the same however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gemlet.daemon.accounting import Accounting
from gemlet.daemon.mps_state import MpsStatus
from gemlet.daemon.native import AwaitedUsage, ClientUsage, DeviceUsage, GroupUsage, Snapshot, UnmanagedUsage
from gemlet.daemon.programs import Programs
from gemlet.daemon.recent_usage import RecentUsage
from gemlet.daemon.status import AT_ONCE, DaemonStatus, Names, Status, build
from gemlet.daemon.totals import Totals
from tests.counting import calls
from tests.unit.daemon.fakes import UUID, FakeInventory, FakeServer

if TYPE_CHECKING:
    from collections.abc import Generator

FEW, MANY = 600, 3000


def programs_of(programs: int, *, groups: int) -> Snapshot:
    """So many programs, as many that are not governed, and ``groups`` of them."""
    clients = tuple(ClientUsage(id=n, pid=1000 + n, state="waits") for n in range(programs))
    each = programs // groups
    return Snapshot(
        devices=(
            DeviceUsage(
                uuid=UUID,
                groups=tuple(
                    GroupUsage(name=f"g{n}", programs=each, clients=clients[n * each : (n + 1) * each])
                    for n in range(groups)
                ),
            ),
        ),
        unmanaged=tuple(
            UnmanagedUsage(pid=n, uid=1, command="x", group="g", why="", strict=None, since_ns=n)
            for n in range(programs)
        ),
    )


def steps(snapshot: Snapshot) -> Generator[None, None, Status]:
    daemon = DaemonStatus(
        pid=1, version="", kind="system", directory="", config=None, policy="fair", uptime_s=0.0, denied=0, ignored=0
    )
    return build(
        snapshot,
        daemon=daemon,
        simulated=False,
        inventory={},
        entries={},
        recent=RecentUsage(),
        events=[],
        mps=MpsStatus(),
        names=Names(Programs(), str),
        totals=Totals(),
    )


def costs(of: Generator[None, None, Status]) -> tuple[list[int], Status]:
    """Calls of each step, and what they come to."""
    counted: list[int] = []
    ended: list[Status] = []

    def step() -> None:
        try:
            next(of)
        except StopIteration as end:
            ended.append(end.value)

    while not ended:
        counted.append(calls(step))
    return counted, ended[0]


@pytest.mark.parametrize("groups", [1, 100])
def test_a_step_of_a_status_takes_as_long_however_many_programs_there_are(groups: int) -> None:
    few, _ = costs(steps(programs_of(FEW, groups=groups)))
    many, status = costs(steps(programs_of(MANY, groups=groups)))
    assert len(many) >= 2 * MANY // AT_ONCE
    assert max(many) <= 2 * max(few)
    assert sum(group.programs for group in status.devices[0].groups) == MANY
    assert sum(len(group.clients) for group in status.devices[0].groups) == MANY, "all are listed"
    assert len(status.unmanaged) == MANY


def test_the_server_is_told_of_all_processes_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits for the server."""
    server, told = FakeServer(), []
    monkeypatch.setattr(server, "set_memory_of_processes", lambda *given: told.append(given))
    found = programs_of(MANY, groups=10)
    held: dict[int, Any] = {1000: 5, 1001: None}  # the driver hides how much the second one has
    Accounting(server, FakeInventory()).book(found, found, {UUID: held}, lists_all=True)
    [(uuid, processes)] = told
    assert uuid == UUID
    assert {pid: size for pid, size, _ in processes if size is not None} == {1000: 5}
    assert len(processes) == MANY - 1


@pytest.mark.parametrize("lists_all", [True, False])
def test_also_what_one_that_has_left_claims_is_for_the_driver_to_confirm(lists_all: bool) -> None:
    left = GroupUsage(name="g", expected=1, awaited=(AwaitedUsage(pid=7, memory=5, contexts=1),))
    found, server = Snapshot(devices=(DeviceUsage(uuid=UUID, groups=(left,)),)), FakeServer()
    Accounting(server, FakeInventory()).book(found, found, {UUID: {}}, lists_all=lists_all)
    assert server.confirmed == ({(UUID, 7): 0} if lists_all else {})
