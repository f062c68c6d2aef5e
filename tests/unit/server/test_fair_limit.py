"""Nobody takes all that there is a limited number of: connections, devices, places in a group."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet.daemon.fair_limit import may_take_another
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.server.conftest import Served

ROOT = Path(__file__).resolve().parents[3]
ANA, LUIS, EVE = 60001, 60002, 60003

# Another user's greedy client takes as many as it gets. Prints how many, and what it is told.
GREEDY = """
import os, sys
path, uid, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sys.path.insert(0, sys.argv[4])
from tests.unit.server import wire
os.setgroups([]); os.setgid(uid); os.setuid(uid)
kept, told = [], ""
for n in range(200):
    if what == "connections" or not kept:
        one = wire.RawClient(path, join=False)
        kept.append(one)
    if what == "connections":
        try:
            one.send(wire.HELLO, group=b"g%d" % uid, flags=wire.CREATE_GROUP)
        except OSError:
            pass
        try:
            answer = one.receive()
        except ConnectionResetError:
            answer = one.receive()
    else:
        if n == 0:
            one.ask(wire.HELLO, group=b"g%d" % uid, flags=wire.CREATE_GROUP)
        if what == "slots":
            one = wire.RawClient(path, "everybody")
            kept.append(one)
        uuid = (n + 1 + 1000 * uid).to_bytes(16, "big") if what == "devices" else bytes(16)
        answer = one.ask(wire.ATTACH, uuid=uuid)
        for descriptor in answer.descriptors:
            os.close(descriptor)
    if answer.status != wire.OK:
        assert answer.status == wire.FULL, answer
        told = answer.text
        break
else:
    n += 1
print(n, told, flush=True)
sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's, for `serve`: other users can reach this one.

    Each run of pytest closes the directory of its user's runs to others when it starts, whatever others run then.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        path = Path(made)
        path.chmod(0o711)
        yield path


@pytest.fixture
def greedy() -> Iterator[Callable[[Served, int, str], tuple[int, str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(served: Served, uid: int, what: str) -> tuple[int, str]:
        Path(served.path).chmod(0o666)
        one = subprocess.Popen(
            [sys.executable, "-c", GREEDY, served.path, str(uid), what, str(ROOT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(one)
        assert one.stdout
        count, _, told = one.stdout.readline().partition(" ")
        return int(count), told

    yield start
    for one in started:
        one.kill()
        one.communicate()


def allowed(places: int, *, others: int) -> int:
    """How many of ``places`` one user gets while others have ``others``, by the rule of the API's connections."""
    kept, theirs = -(-places // 64), 0
    while may_take_another(places, taken=others + theirs, theirs=theirs, kept=kept, administers=False):
        theirs += 1
    return theirs


@pytest.mark.parametrize(
    ("what", "places"), [("connections", 32), ("devices", 64), ("slots", 1024)], ids=["connections", "devices", "slots"]
)
def test_there_is_something_left_for_each_user_and_for_root(
    serve: Callable[..., Served], greedy: Callable[[Served, int, str], tuple[int, str]], what: str, places: int
) -> None:
    s = serve(connections=32) if what == "connections" else serve()
    s.server.set_group("everybody")
    counts = []
    for uid in (ANA, LUIS, EVE):
        count, told = greedy(s, uid, what)
        assert count == min(allowed(places, others=sum(counts)), 200)
        counts.append(count)
        if count < 200:
            assert f"user {uid} has {count} of {places}" in told
    assert min(counts) >= places // 16
    assert counts[0] <= places // 2
    assert sum(counts) < places
    polite = RawClient(s.path, "everybody").attach(b"a device of root")
    polite.send(wire.REQUEST)
    polite.await_state(wire.RUN)


@pytest.mark.parametrize("what", ["connections", "uses"])
def test_nobody_but_an_administrator_has_more_than_one_may_have(
    serve: Callable[..., Served], greedy: Callable[[Served, int, str], tuple[int, str]], what: str
) -> None:
    s = serve(of_one=5)
    s.server.set_group("everybody")
    for uid in (ANA, LUIS):
        count, told = greedy(s, uid, "connections" if what == "connections" else "devices")
        assert count == 5
        assert f"user {uid} has 5 of 5 {'connections' if what == 'connections' else 'uses of devices'}" in told
    for _ in range(10):
        RawClient(s.path, "everybody").attach()


def test_subordinate_uids_have_no_places_of_their_own(
    serve: Callable[..., Served], greedy: Callable[[Served, int, str], tuple[int, str]]
) -> None:
    """Without them one user, who has 65536, left no connection to others."""
    s = serve(of_one=5)
    s.server.set_accounts([(LUIS, LUIS, ANA)])
    assert greedy(s, ANA, "connections")[0] == 5
    count, told = greedy(s, LUIS, "connections")
    assert count == 0
    assert f"user {ANA} has 5 of 5 connections" in told
    assert greedy(s, EVE, "connections")[0] == 5


def test_the_clients_of_a_groups_socket_count_together(serve: Callable[..., Served], tmp_path: Path) -> None:
    """Root in a container is not root of this machine."""
    s = serve(connections=16)
    path = str(tmp_path / "pod")
    s.server.set_group("pod")
    s.server.listen(path, "pod", 0o666)
    for _ in range(10):
        try:
            RawClient(path)
        except (AssertionError, OSError):
            break
    else:
        pytest.fail("they took all")
    RawClient(s.path, "root")


def test_places_come_back(serve: Callable[..., Served]) -> None:
    s = serve(connections=4, uses=4)
    for _ in range(20):
        client = RawClient(s.path, "g").attach()
        client.close()
        wire.eventually(lambda: not any(g["clients"] for g in s.groups().values()))


@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0, reason="no namespaces"
)
def test_root_in_a_container_may_not_have_all_there_are(serve: Callable[..., Served]) -> None:
    s = serve(of_one=5)
    code = GREEDY.replace("os.setgroups([]); os.setgid(uid); os.setuid(uid)", "").replace("sys.stdin.readline()", "")
    arguments = [s.path, "0", "connections", str(ROOT)]
    for apart, expected in (([], 200), (["unshare", "--pid", "--fork"], 5)):
        command = [*apart, sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert int(done.stdout.split()[0]) == expected
