"""Who users are: kept, looked up beside the event loop, and never waited for without a limit."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading

import pytest

from gemlet.daemon import users
from gemlet.daemon.users import Users, look
from gemlet.errors import Refused

ANA, LUIS, EVE = 70001, 70002, 70003
PEOPLE = {ANA: "ana", LUIS: "luis", "ana": ANA, "luis": LUIS}


class Directory:
    """Answers when it is let; counts what it was asked. ``now``: the clock."""

    def __init__(self) -> None:
        self.asked: list[users.Key] = []
        self.open = threading.Event()
        self.open.set()
        self.now = 0.0
        self.users = Users(self.look, lambda: self.now)

    def look(self, key):
        self.asked.append(key)
        self.open.wait()
        return PEOPLE.get(key)

    def learn(self, *who, **how) -> None:
        asyncio.run(self.users.learn(who, **how))


@pytest.fixture
def directory():
    made = Directory()
    yield made
    made.open.set()


def test_what_the_machine_says():
    me = pwd.getpwuid(os.getuid())
    assert (look(me.pw_uid), look(me.pw_name)) == (me.pw_name, me.pw_uid)
    assert look("no such user") is look(2**40) is look("\udcff") is None


def test_each_user_is_looked_up_once(directory):
    for _ in range(3):
        directory.learn(ANA, "luis")
        assert directory.users.name_of(ANA) == "ana"
        assert directory.users.uid_of("luis") == LUIS
    assert directory.asked == [ANA, "ana", "luis"]


def test_a_name_that_a_uid_has_stands_for_it_at_once(directory):
    directory.learn(ANA)
    assert directory.users.uid_of(directory.users.name_of(ANA)) == ANA


def test_numbers_need_no_directory(directory):
    directory.learn("70009")
    assert directory.users.uid_of("70009") == 70009
    assert directory.asked == []
    with pytest.raises(Refused):
        directory.users.uid_of("a\0b")


def test_after_a_while_it_is_looked_up_again_and_the_old_answer_serves_meanwhile(directory):
    directory.learn("ana")
    directory.now += users.FRESH_SECONDS
    directory.open.clear()
    assert directory.users.uid_of("ana") == ANA
    directory.learn("ana", patience=0.01)
    assert directory.users.uid_of("ana") == ANA
    directory.open.set()
    directory.learn("ana")
    assert directory.asked == ["ana", "ana"]


def test_a_directory_that_does_not_answer_holds_nobody_up(directory):
    directory.open.clear()
    assert directory.users.name_of(ANA) == str(ANA)
    directory.learn("ana", patience=0.01)
    with pytest.raises(Refused, match="has not answered yet"):
        directory.users.uid_of("ana")
    assert not directory.users.answered_late()
    directory.open.set()
    directory.learn(LUIS)
    assert directory.users.answered_late()
    assert not directory.users.answered_late()
    assert directory.users.uid_of("ana") == ANA
    assert directory.users.name_of(ANA) == "ana"


def test_nobody_is_looked_up_after_one_who_is_unknown(directory):
    directory.learn("who", "ana")
    assert directory.asked == ["who"]
    with pytest.raises(Refused, match="no user who on this machine"):
        directory.users.uid_of("who")
    directory.learn("who", "what", "ana", all_of_them=True)
    assert directory.asked == ["who", "what", "ana"]


def test_an_account_that_is_made_is_known_soon(directory, monkeypatch):
    directory.learn("eva")
    directory.now += users.UNKNOWN_SECONDS
    monkeypatch.setitem(PEOPLE, "eva", 70003)
    directory.learn("eva")
    assert directory.users.uid_of("eva") == 70003


def test_bounds(directory, monkeypatch):
    monkeypatch.setattr(users, "MOST_NOBODIES", 10)
    monkeypatch.setattr(users, "MOST_ASKED", 5)
    directory.learn(*range(1000, 1030))
    assert list(directory.users._nobodies) == list(range(1020, 1030))
    directory.open.clear()
    for uid in range(2000, 2100):
        directory.users.name_of(uid)
        with pytest.raises(Refused):
            directory.users.uid_of(f"user{uid}")
    assert len(directory.users._asked[None]) == 5
    assert len(directory.users._missed) <= 5


def test_nobody_is_forgotten_because_others_were_asked_for(directory, monkeypatch):
    monkeypatch.setattr(users, "MOST_NOBODIES", 10)
    directory.learn("ana")
    directory.learn(*(f"nobody{n}" for n in range(100)), all_of_them=True, asked_by=EVE)
    assert directory.users.uid_of("ana") == ANA
    assert len(directory.users._nobodies) == 10


def test_nobody_waits_for_what_another_one_asks(directory):
    waits = threading.Event()
    directory.users._look = lambda key: waits.wait(60) if key == "slow" else PEOPLE.get(key)
    directory.learn("slow", asked_by=EVE, patience=0.001)
    for n in range(2 * users.MOST_ASKED):
        directory.learn(f"slow{n}", asked_by=EVE, patience=0.0)
    directory.learn("ana", asked_by=ANA, patience=60.0)
    assert directory.users.uid_of("ana") == ANA
    assert len(directory.users._asked[EVE]) == users.MOST_ASKED
    waits.set()


def test_a_look_up_that_hangs_does_not_keep_the_loop_from_turning(directory):
    directory.open.clear()

    async def live() -> int:
        turns = 0
        waiting = asyncio.ensure_future(directory.users.learn(["ana"], patience=600.0))
        for _ in range(100):
            await asyncio.sleep(0)
            directory.users.name_of(ANA)
            turns += 1
        directory.open.set()
        await waiting
        return turns

    assert asyncio.run(live()) == 100
    assert directory.users.uid_of("ana") == ANA
