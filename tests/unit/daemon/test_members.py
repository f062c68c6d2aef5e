"""What a daemon writes of its members, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

import msgspec
import pytest

from gemlet.daemon.members import Ledger, Members
from gemlet.daemon.processes import start_of
from gemlet.daemon.state_file import StateFile
from tests import fuzzing
from tests.unit.daemon.fakes import UUID, FakeServer

LIMIT = 1 << 30


def slot(pid: int = 0, **changes: object) -> dict[str, object]:
    pid = pid or os.getpid()
    counts = dict.fromkeys(("contexts", "untracked", "fixed", "movable", "mapped"), 1)
    told = {"pid": pid, "uid": 7, "started": start_of(pid), "who": "user 7", "administrator": False, "used": LIMIT}
    return told | counts | changes


def ledger(*slots: dict[str, object], **changes: object) -> dict[str, object]:
    return {"device": UUID, "index": 0, "number": 7, "context_estimate": 5, "group": "g", "slots": [*slots]} | changes


class Server(FakeServer):
    """Its members are as said; it keeps what it inherits, and whether the processes' descriptors were open."""

    def __init__(self, *ledgers):
        super().__init__()
        self.ledgers = [*ledgers]
        self.inherited = []

    def members(self):
        return [
            told | {"fd": 99, "slots": [s | {"index": 3, "fd": 98} for s in told["slots"]]} for told in self.ledgers
        ]

    def inherit_ledger(self, image):
        if image["group"] == "bad":
            raise ValueError("no such device")
        for each in image["slots"]:
            os.fstat(each["fd"])
        self.inherited.append(image)


@pytest.fixture
def members(tmp_path):
    made = []

    def make(*ledgers, gone=lambda: False):
        made.append(Server(*ledgers))
        return Members(StateFile(tmp_path / "members.json"), made[-1], gone=gone), made[-1]

    yield make
    for server in made:
        server.stop()


def test_the_next_daemon_awaits_those_that_live(members):
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    mine = slot()
    writes, _ = members(
        ledger(slot(ended.pid, started=5), mine, slot(started=mine["started"] + 1)),
        ledger(slot(1, started=1), group="h"),
    )
    asyncio.run(writes.write())
    reads, server = members()
    reads.expect()
    (image,) = server.inherited
    assert (image["device"], image["index"], image["context_estimate"], image["group"]) == (UUID, 0, 5, "g")
    assert image["fd"] == -1
    (kept,) = image["slots"]
    assert kept == mine | {"index": 0, "before": 3, "fd": kept["fd"]}
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(kept["fd"])


def test_a_group_that_cannot_be_awaited_does_not_keep_others_from_it(members, caplog):
    writes, _ = members(ledger(slot(), group="bad"), ledger(slot(used=2**64 - 1)))
    asyncio.run(writes.write())
    reads, server = members()
    reads.expect()
    assert [image["group"] for image in server.inherited] == ["g"]
    assert "group=bad cannot be used: no such device" in caplog.text


def test_it_is_written_when_it_changed_and_not_by_one_that_left(members, tmp_path):
    file, gone = tmp_path / "members.json", threading.Event()
    writes, server = members(ledger(slot()), gone=gone.is_set)
    asyncio.run(writes.write())
    before = file.stat().st_ino
    asyncio.run(writes.write())
    assert file.stat().st_ino == before
    server.ledgers = []
    gone.set()
    asyncio.run(writes.write())
    assert msgspec.json.decode(file.read_bytes(), type=list[Ledger])
    gone.clear()
    asyncio.run(writes.write())
    assert file.read_bytes() == b"[]"


def test_a_disk_that_does_not_take_it(members, tmp_path, caplog):
    (tmp_path / ".members.json.new").mkdir()
    writes, _ = members(ledger(slot()))
    asyncio.run(writes.write())
    asyncio.run(writes.write())
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / ".members.json.new").rmdir()
    asyncio.run(writes.write())
    assert (tmp_path / "members.json").exists()


def test_anything_may_lie_there(members, tmp_path):
    reads, server = members()
    for data in fuzzing.inputs("configuration"):
        (tmp_path / "members.json").write_bytes(data)
        reads.expect()
        assert server.inherited == [], (fuzzing.SEED, data)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_another_user(members, tmp_path, caplog):
    writes, _ = members(ledger(slot()))
    asyncio.run(writes.write())
    os.chown(tmp_path / "members.json", 12345, 12345)
    reads, server = members()
    reads.expect()
    assert server.inherited == []
    assert "it belongs to uid 12345" in caplog.text
