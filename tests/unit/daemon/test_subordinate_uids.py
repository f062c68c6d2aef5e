"""Users who have uids beside their own, by /etc/subuid: all that they have counts together."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.daemon.groups import GroupBook
from gemlet.daemon.launchers import Launchers
from gemlet.daemon.processes import Peer
from gemlet.daemon.requests import Limits
from gemlet.daemon.subordinate_uids import SubordinateUids, parse, ranges
from gemlet.errors import Refused
from gemlet.model import UserSpec
from tests.unit.daemon.fakes import FakeServer

ANA, BEN, HERS = 1000, 1001, (100_000, 100_001)
NOBODY = frozenset({0})


def uid_of(user):
    return {"ana": ANA, "ben": BEN}.get(user) or int(user)


class Process:
    def alive(self):
        return True


def run(coroutine):
    return asyncio.run(coroutine)


@pytest.fixture
def subordinates(tmp_path):
    file = tmp_path / "subuid"
    file.write_text("ana:100000:65536\nben:165536:65536\n")
    made = SubordinateUids(shared=True, file=file, look={"ana": ANA, "ben": BEN}.get)
    run(made.learn(5.0))
    return made


@pytest.fixture
def book(subordinates):
    return GroupBook(FakeServer(), owner=0, shared=True, uid_of=uid_of, name_of=str, account=subordinates.account)


def join(book, name, uid, **limits):
    return book.join(name, Limits(**limits), command="c", uid=uid, launcher=Process(), busy={})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ana:100000:65536\n", [("ana", 100_000, 165_535)]),
        ("1000:5:1", [("1000", 5, 5)]),
        ("", []),
        ("# ana:1:2\n\nana\nana:1\n:1:2\nana:x:2\nana:-1:2\nana:1:0\nana:1:2:3\nana:²:1\n", []),
        ("ana:4294967290:99999999", [("ana", 4294967290, 4294967294)]),
        (f"ana:{'9' * 5000}:1", []),
    ],
)
def test_lines(text, found):
    assert [tuple(each) for each in parse(text) if not each.owner.startswith("#")] == found


def test_ranges_are_in_order_and_apart():
    given = parse("b:200:50\na:100:1000\nroot:50:5000\nc:1050:100\nlost:3000:10\nd:0:2\n")
    uids = {"a": 1, "b": 2, "c": 3, "d": 4, "root": 0}
    assert ranges(given, uids, NOBODY) == [(1, 1, 4), (100, 1099, 1), (1100, 1149, 3), (3000, 3009, 3000)]


def test_a_uid_is_its_users(subordinates, tmp_path):
    assert [subordinates.account(uid) for uid in (0, ANA, 99_999, 100_000, 165_535, 165_536, 231_072)] == [
        0, ANA, 99_999, ANA, ANA, BEN, 231_072,
    ]  # fmt: skip
    (tmp_path / "subuid").unlink()
    run(subordinates.learn(5.0))
    assert subordinates.account(100_000) == 100_000


def test_what_root_was_given_is_nobodys(tmp_path):
    """LXD's, in which containers of several users are: programs in it must not be root's."""
    (tmp_path / "subuid").write_text("root:100000:65536\n0:200000:65536\n")
    made = SubordinateUids(shared=True, file=tmp_path / "subuid")
    run(made.learn(5.0))
    assert made.ranges == []


def test_a_daemon_of_one_user_reads_nothing(tmp_path):
    (tmp_path / "subuid").write_text("ana:100000:65536\n")
    made = SubordinateUids(shared=False, file=tmp_path / "subuid")
    run(made.learn(5.0))
    assert made.ranges == []


def test_minima_of_a_user_count_together(book):
    join(book, "a", ANA, min=0.25)
    join(book, "b", HERS[0], min=0.25)
    with pytest.raises(Refused, match=r"may reserve 50% of a device, of which 50% is taken"):
        join(book, "c", HERS[1], min=0.01)
    join(book, "d", BEN, min=0.5)


def test_weights_and_memory_and_numbers_count_together(book):
    book.configure([], [UserSpec(name="ana", memory=2**30, groups=2)])
    join(book, "a", HERS[0], memory=2**29)
    join(book, "b", ANA, memory=2**29)
    book.balance([{"a", "b"}])
    assert [book._server.groups[name]["weight"] for name in "ab"] == [0.5, 0.5]
    with pytest.raises(Refused, match="has 2 groups already"):
        join(book, "c", HERS[1], memory=2**20)


def test_what_a_uid_may_do_is_its_own(book):
    join(book, "a", ANA)
    with pytest.raises(Refused, match="not open to 100000"):
        join(book, "a", HERS[0])
    with pytest.raises(Refused, match="can be changed only by"):
        book.change("a", Limits(max=0.5), uid=HERS[0], busy={})


def test_places_of_launchers_count_together(subordinates):
    all_of_them = Launchers(owner=0, account=subordinates.account, opened=lambda _: Process(), started=lambda pid: pid)
    kept = [all_of_them.of(Peer(1 + n, HERS[0] + n)) for n in range(1024)]
    assert 400 < sum(each is not None for each in kept) <= 512
