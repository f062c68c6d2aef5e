"""A daemon in a pid namespace of its own, as in a container: all its programs have the pid 0 there."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("gemlet._native", reason="the native module is not built")

GIB = 1 << 30
UNSHARE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
SERVER = """
import json, sys
from gemlet import _native
server = _native.Server()
server.set_group("g", memory=1 << 34)
server.listen(sys.argv[1])
server.start()
print("[]", flush=True)
for _ in sys.stdin:
    groups = [group for device in server.snapshot()["devices"] for group in device["groups"]]
    used = sum(group["memory_used"] for group in groups if group["name"] == "g")
    print(json.dumps([used, [slot["pid"] for image in server.members() for slot in image["slots"]]]), flush=True)
"""


class Server:
    def __init__(self, path: str) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-c", SERVER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def asked(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def used(self) -> int:
        return int(self.asked()[0])


def _why_not() -> str | None:
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 9):
        return "a kernel before 6.9 does not tell processes apart whose pid has no meaning"
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if (reason := _why_not()) is not None:
        pytest.skip(reason)
    made = Server(str(tmp_path / "s"))
    yield made
    wire.end_all()
    made.process.kill()
    made.process.communicate()


def holder(server: Server, **how: Any) -> RawClient:
    client = RawClient(server.path, **how).attach()
    client.ledger.put("slots", GIB, index=client.slot)
    return client


def test_what_a_program_holds_counts_until_it_has_ended(server: Server) -> None:
    holding = holder(server, own_process=True)
    assert server.used() == GIB
    holding.socket.close()
    RawClient(server.path, own_process=True).attach()  # another, of the same pid as far as the daemon can tell
    time.sleep(1.5)  # the daemon has looked again at those that are not connected
    assert server.used() == GIB
    holding.end()
    eventually(lambda: server.used() == 0)


def test_one_that_comes_back_has_its_memory_once(server: Server) -> None:
    first, other = holder(server), holder(server, own_process=True)
    first.socket.close()
    other.socket.close()
    again = RawClient(server.path, flags=wire.CREATE_GROUP | wire.AGAIN).attach()
    assert again.slot == first.slot
    assert again.ledger.get("slots", index=again.slot) == GIB
    assert server.used() == 2 * GIB
    RawClient(server.path, "another", own_process=True)
    assert server.used() == 2 * GIB


def test_the_next_daemon_is_not_told_of_pids_that_mean_nothing(server: Server) -> None:
    holder(server)
    assert server.asked() == [GIB, []]
