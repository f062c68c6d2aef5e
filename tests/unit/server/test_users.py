"""Users who do not trust each other: the members of a group, and what a user keeps who is no longer a member."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet.daemon.groups import MAX_GROUPS
from gemlet.daemon.processes import NOBODY
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

ROOT = Path(__file__).resolve().parents[3]
OTHER = 65534
GIB = 1 << 30

# Another user's client, which makes a group by joining it. Prints the outcome.
MEMBER = """
import os, sys
sys.path.insert(0, sys.argv[3])
from tests.unit.server import wire
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
client = wire.RawClient(sys.argv[1], "team").attach()
print("in", flush=True)
sys.stdin.readline()
try:
    client.receive()
except ConnectionError:
    print("out", flush=True)
client.ledger.put("slots", 3 << 30, index=0)
answer = wire.RawClient(sys.argv[1], join=False).ask(wire.HELLO, group=b"team", flags=wire.CREATE_GROUP)
print(answer.status, flush=True)
sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def member(serve: Callable[..., Served]) -> Callable[..., subprocess.Popen[str]]:
    def make(served: Served, program: str = MEMBER) -> subprocess.Popen[str]:
        Path(served.path).chmod(0o666)
        for folder in Path(served.path).parents:
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o001)
        return subprocess.Popen(
            [sys.executable, "-c", program, served.path, str(OTHER), str(ROOT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    return make


def test_the_maker_of_a_group_is_known_until_it_is_set(serve: Callable[..., Served]) -> None:
    s = serve()
    assert s.server.maker("team") is None
    client = RawClient(s.path, "team")
    assert s.server.maker("team") == os.getuid()
    s.server.set_group("team")
    assert s.server.maker("team") is None
    client.close()


@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0, reason="no namespaces"
)
def test_what_root_in_a_container_makes_is_nobodys(serve: Callable[..., Served]) -> None:
    """Root of the machine has neither quota nor a most of groups, and may give names that begin with @."""
    s = serve()
    program = MEMBER.replace("os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))", "")
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program, s.path, "0", str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as contained:
        assert contained.stdout
        said, maker = contained.stdout.readline(), s.server.maker("team")
        s.server.stop()  # its connection ends, which it waits for
        contained.communicate("\n\n")
    assert (said, maker) == ("in\n", NOBODY)


def test_a_former_member_of_a_group_has_none_of_its_memory(
    serve: Callable[..., Served], member: Callable[..., subprocess.Popen[str]]
) -> None:
    s = serve()
    with member(s) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "in\n"
        assert s.server.maker("team") == OTHER
        friend = RawClient(s.path, "team").attach()  # root may join anything
        s.server.set_group("team", users=[12345], memory=GIB)
        with pytest.raises(ConnectionError):
            friend.receive()
        again = RawClient(s.path, "team").attach()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "out\n"
        assert other.stdout.readline() == f"{wire.DENIED}\n"
        assert again.ledger.get("slots", index=0) == 0
        assert s.groups()["team"]["memory_used"] == 0
        assert again.limits.get("memory_limit") == GIB
        other.stdin.write("\n")


def test_a_member_that_takes_memory_at_that_moment_begins_anew(
    serve: Callable[..., Served], member: Callable[..., subprocess.Popen[str]]
) -> None:
    """It has seen that there is room, and has written nothing that the next ledger could have: it loses the lock."""
    s = serve()
    with member(s) as other:
        assert other.stdout
        assert other.stdout.readline() == "in\n"
        friend = RawClient(s.path, "team").attach()
        friend.ledger.put("lock", friend.slot + 1, size=4)
        s.server.set_group("team", users=[12345], memory=GIB)
        assert friend.ledger.get("lock", size=4) == 0
        assert friend.limits.get("untracked") == friend.limits.get("memory_limit")  # nor is there room
        other.kill()


def test_members_stay_when_a_change_keeps_them(serve: Callable[..., Served]) -> None:
    s = serve()
    client = RawClient(s.path, "team").attach()
    s.server.set_group("team", users=[os.getuid()], memory=GIB)
    s.server.set_group("team", users=None, memory=2 * GIB)
    client.send(wire.REQUEST)
    client.await_state(wire.RUN)
    assert client.limits.get("memory_limit") == 2 * GIB


# Another user's program, which says that it has one context and has allocated nothing.
LIAR = """
import os, sys
sys.path.insert(0, sys.argv[3])
from tests.unit.server import wire
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
client = wire.RawClient(sys.argv[1], "theirs").attach()
client.send(wire.CONTEXT, value=1)
print("said", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("held", [60 * GIB, 1], ids=["all", "nothing"])
def test_what_a_user_says_of_contexts_is_not_believed_of_others(
    serve: Callable[..., Served], member: Callable[..., subprocess.Popen[str]], held: int
) -> None:
    """They could make none within their limits, and what they hold would count twice, or more at a time than fit."""
    s = serve()
    s.server.add_device(bytes(16), 0)
    s.server.set_group("mine", memory=20 * GIB)
    with member(s, LIAR) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "said\n"
        wire.eventually(lambda: s.groups()["theirs"]["clients"][0]["contexts"])  # type: ignore[index]
        s.server.set_memory_of_processes(bytes(16), [(other.pid, held, (0, 1, 0))])
        mine = RawClient(s.path, "mine").attach()
        assert mine.limits.get("context_estimate") == 0
        mine.send(wire.CONTEXT, value=1)
        wire.eventually(lambda: s.groups()["mine"]["clients"][0]["contexts"])  # type: ignore[index]
        s.server.set_memory_of_processes(bytes(16), [(os.getpid(), GIB // 2, (0, 1, 0))])
        mine.ledger.put("slots", 10 * GIB, index=mine.slot)
        s.server.set_memory_of_processes(bytes(16), [(os.getpid(), 10 * GIB + GIB // 2, (10 * GIB, 1, 0))])
        s.server.set_memory_of_processes(bytes(16), [(other.pid, held, (0, 1, 0))])
        assert s.groups()["mine"]["memory_used"] == 10 * GIB + GIB // 2
        assert mine.limits.get("context_estimate") == GIB // 2
        other.stdin.write("\n")


# Another user's programs, which name a group each. Prints how many they could make, and why no more.
MAKER = """
import os, sys
sys.path.insert(0, sys.argv[3])
from tests.unit.server import wire
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
made, answer = [], None
while answer is None or answer.status == wire.OK:
    made.append(wire.RawClient(sys.argv[1], join=False))
    answer = made[-1].ask(wire.HELLO, group=b"mine-%d" % len(made), flags=wire.CREATE_GROUP)
print(len(made) - 1, answer.status, answer.text, flush=True)
made[0].close()
sys.stdin.readline()
made.append(wire.RawClient(sys.argv[1], join=False))
print(made[-1].ask(wire.HELLO, group=b"another", flags=wire.CREATE_GROUP).status, flush=True)
sys.stdin.readline()
"""


def test_programs_of_a_user_make_no_more_groups_than_the_user_may(
    member: Callable[..., subprocess.Popen[str]], serve: Callable[..., Served]
) -> None:
    s = serve()
    other = member(s, MAKER)
    assert other.stdin
    assert other.stdout
    assert other.stdout.readline().split(maxsplit=2)[:2] == [str(MAX_GROUPS), str(wire.FULL)]
    s.server.set_group("mine-2")  # it counts also once the daemon has taken it into its book
    RawClient(s.path, "of others").close()
    wire.eventually(lambda: s.server.maker("mine-1") is None)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline().split() == [str(wire.OK)]  # in place of the one that has gone
    other.kill()
    other.communicate()
