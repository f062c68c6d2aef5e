"""What members tell of the ledger of a daemon that was killed, where others do not play along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server import wire
from tests.unit.server.test_succession import LIMITS, MIB, elder, group, holds, is_held, revive, used_by_members
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.server.conftest import Served

__all__ = ["elder", "revive"]

ROOT = Path(__file__).resolve().parents[3]
OTHER = 65534

# Another user's client. Does as it is told: a line of Python at a time.
MEMBER = """
import os, sys
sys.path.insert(0, sys.argv[3])
from tests.unit.server import wire
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
client = wire.RawClient(sys.argv[1])
print("in", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


class Member:
    """Of another user."""

    def __init__(self, path: str) -> None:
        Path(path).chmod(0o666)
        for folder in Path(path).parents:
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o001)
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, path, str(OTHER), str(ROOT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._says("in")

    def does(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._says("done")

    def _says(self, word: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == f"{word}\n"


@pytest.fixture
def member() -> Iterator[Callable[[str], Member]]:
    made: list[Member] = []

    def make(path: str) -> Member:
        made.append(Member(path))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_what_was_told_counts_also_when_a_user_has_to_leave(
    elder: Served, revive: Callable[..., Any], member: Callable[[str], Member]
) -> None:
    teller = holds(RawClient(elder.path).attach(), 100)
    noted = elder.server.members()
    late = holds(RawClient(elder.path, own_process=True).attach(), 300)
    server = revive(elder, noted)
    back = RawClient(elder.path).attach(before=teller)
    back.tell(teller.number, {late.slot: 300 * MIB})
    wire.eventually(lambda: not is_held(back))
    member(elder.path)
    server.set_group("g", **LIMITS, users=[12345])  # root may join anything
    again = RawClient(elder.path).attach()
    assert used_by_members(again) == 400 * MIB
    come = RawClient(elder.path, own_process=True).attach(before=late)
    others = [RawClient(elder.path, own_process=True).attach() for _ in range(3)]
    assert len({client.slot for client in (again, come, *others)}) == 5
    assert used_by_members(again) == group(server)["memory_used"] == 400 * MIB


def test_lies_keep_no_other_user_out_of_the_group(
    elder: Served, revive: Callable[..., Any], member: Callable[[str], Member]
) -> None:
    holds(RawClient(elder.path).attach(), 100)
    revive(elder)
    liar = member(elder.path)
    liar.does("client.attach(before=type('Before', (), {'number': 77, 'slot': 0, 'held': 0}))")
    liar.does("assert client.is_to_tell")
    liar.does("client.tell(77, {slot: 1 for slot in range(1024)})")
    RawClient(elder.path, own_process=True).attach()


def test_a_group_that_is_made_again_has_nothing_of_the_one_before(elder: Served, revive: Callable[..., Any]) -> None:
    teller = holds(RawClient(elder.path, own_process=True).attach(), 100)
    noted = elder.server.members()
    first, late = (holds(RawClient(elder.path, own_process=True).attach(), mib) for mib in (200, 300))
    server = revive(elder, noted)
    back = RawClient(elder.path, own_process=True).attach(before=first)
    back.tell(teller.number, {late.slot: 300 * MIB})
    wire.eventually(lambda: not is_held(back))
    for client in (back, teller):
        client.end()
    wire.eventually(lambda: server.remove_group("g"))
    server.set_group("g", **LIMITS)
    come = RawClient(elder.path, own_process=True).attach(before=late)
    others = [RawClient(elder.path, own_process=True).attach() for _ in range(3)]
    assert len({client.slot for client in (come, *others)}) == 4
    assert used_by_members(come) == group(server)["memory_used"] == 300 * MIB
