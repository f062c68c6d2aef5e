"""What one user may have of a daemon: ceilings, defaults, and who is not bound by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.config import files
from gemlet.config.render import render
from gemlet.daemon.quotas import weights_in_force
from gemlet.daemon.requests import Limits
from gemlet.errors import ConfigError, Refused
from gemlet.model import Priority
from tests.unit.daemon.test_groups import ANA, DAEMON, GIB, LUIS, book, join, server, shared_book  # noqa: F401

TEXT = """\
[users.ana]
min = "40%"
max = "80%"
memory = "10GiB"
priority = "normal"
groups = 3
defaults = { memory = "4GiB", max = "50%" }

[users."*"]
min = "10%"

[users.2002]
memory = "1GiB"
"""


@pytest.fixture
def ruled(shared_book):  # noqa: F811
    read = files.parse(TEXT, "gemlet.toml")
    assert files.parse(render(read), "gemlet.toml").users == read.users
    shared_book._uid_of = lambda name: {"ana": ANA, "luis": LUIS, "2002": LUIS, "daemon": DAEMON}[name]
    assert shared_book.configure(read.groups, read.users) == []
    return shared_book


def test_what_is_not_said_has_the_defaults(ruled):
    spec = join(ruled, "a", uid=ANA).spec
    assert (spec.min, spec.max, spec.memory) == (0.0, 0.5, 4 * GIB)
    assert join(ruled, "b", uid=ANA, max=0.7, memory=5 * GIB).spec.max == 0.7
    assert join(ruled, "l", uid=LUIS).spec.memory == GIB  # what is left


@pytest.mark.parametrize(
    ("limits", "message", "hint"),
    [
        ({"max": 0.9}, "max 90% is more than ana may have, 80%", "--max 80%"),
        ({"min": 0.5, "max": 0.8}, "ana may reserve 40% of a device, of which 0% is taken", "--min 40%"),
        ({"memory": 11 * GIB}, "ana has 10 GiB of 10 GiB of memory left, not enough for 11 GiB", "--memory 10GiB"),
        ({"memory": "none"}, "of memory left, not enough for a group without a limit", "--memory 10GiB"),
        ({"priority": Priority.LATENCY}, "priority latency is above what ana may have", "--priority normal"),
    ],
)
@pytest.mark.parametrize("how", ["make", "join", "set", "rejoin"])
def test_more_than_the_ceiling_is_refused(ruled, how, limits, message, hint):
    if how != "make":
        join(ruled, "a", uid=ANA)
    busy = {"a": 1} if how == "join" else {}
    with pytest.raises(Refused, match=message) as caught:
        _ = (
            ruled.change("a", Limits(**limits), uid=ANA, busy={"a": 1})
            if how == "set"
            else join(ruled, "a", uid=ANA, busy=busy, **limits)
        )
    assert hint in caught.value.hint


def test_ceilings_are_of_all_groups_of_a_user_together(ruled):
    join(ruled, "a", uid=ANA, min=0.3, memory=8 * GIB)
    with pytest.raises(Refused, match="of which 30% is taken"):
        join(ruled, "b", uid=ANA, min=0.2, memory=GIB)
    with pytest.raises(Refused, match="ana has 2 GiB of 10 GiB of memory left, not enough for 4 GiB"):
        join(ruled, "b", uid=ANA)
    join(ruled, "b", uid=ANA, min=0.1, memory=GIB)
    join(ruled, "c", uid=ANA, memory=GIB)
    with pytest.raises(Refused, match="ana has 3 groups"):
        join(ruled, "d", uid=ANA, memory=1 << 20)
    join(ruled, "l", uid=LUIS, min=0.5)  # what ana has says nothing of what luis may have; his section has no min


def test_minima_on_other_devices_do_not_count_and_memory_does(ruled):
    join(ruled, "a", uid=ANA, device=0, min=0.4, memory=9 * GIB)
    join(ruled, "b", uid=ANA, device=1, min=0.4, memory=1 * GIB)
    with pytest.raises(Refused, match="has 0 B of 10 GiB"):  # a limit of memory is in force wherever its programs go
        join(ruled, "c", uid=ANA, device=2, memory=1 * GIB)


def test_what_a_user_has_on_several_devices_is_not_taken_together(ruled):
    join(ruled, "a", uid=ANA, device=0, min=0.3, memory=GIB)
    join(ruled, "b", uid=ANA, device=1, min=0.2, memory=GIB)
    with pytest.raises(Refused, match="of which 30% is taken"):
        join(ruled, "c", uid=ANA, min=0.2, memory=GIB)
    join(ruled, "c", uid=ANA, min=0.1, memory=GIB)


@pytest.mark.parametrize("uid", [0, DAEMON])
def test_root_has_no_quota_and_may_pass_those_of_others(ruled, uid):
    ruled._owner = uid
    join(ruled, "r", uid=uid, min=0.6)
    join(ruled, "a", uid=ANA)
    ruled.change("a", Limits(max=0.95), uid=uid, busy={})


def test_nobody_reserves_all_of_a_shared_device_by_coming_first(shared_book, book):  # noqa: F811
    with pytest.raises(Refused, match="luis may reserve 50%"):
        join(shared_book, uid=LUIS, min=1.0)
    join(shared_book, uid=LUIS, min=0.5)
    join(shared_book, uid=ANA, min=0.5)
    join(book, uid=DAEMON, min=1.0)  # a daemon of one's own


def test_nobody_outweighs_others_of_a_shared_daemon(shared_book, book):  # noqa: F811
    join(shared_book, "a", uid=ANA, weight=1.0)
    with pytest.raises(Refused, match="weight 2 is more than ana may have, 1"):
        shared_book.change("a", Limits(weight=2.0), uid=ANA, busy={})
    shared_book.change("a", Limits(weight=2.0), uid=0, busy={})
    shared_book.configure((), files.parse("[users.luis]\nweight = 0.5\n[users.ana]\nweight = 9", "gemlet.toml").users)
    shared_book.change("a", Limits(weight=9.0), uid=ANA, busy={})
    assert join(shared_book, uid=LUIS).spec.weight == 0.5
    join(book, uid=DAEMON, weight=1000.0)  # a daemon of one's own


def weights(server, *names):  # noqa: F811
    return [round(server.groups[name]["weight"], 3) for name in names]


def test_the_groups_of_a_user_together_have_the_weight_of_one(shared_book, server):  # noqa: F811
    names = [f"g{number}" for number in range(4)]
    for name in names:
        join(shared_book, name, uid=ANA)
    join(shared_book, "l", uid=LUIS)
    assert weights(server, *names, "l") == [1, 0.5, 0.333, 0.25, 1], "as they came, until the next look"
    shared_book.balance([{*names, "l"}])
    assert weights(server, *names, "l") == [0.25] * 4 + [1]
    shared_book.change("g0", Limits(weight=0.5), uid=ANA, busy={})
    shared_book.change("g0", Limits(weight=1.0), uid=ANA, busy={})
    assert weights(server, "g0") == [0.25], "no way to get more for a moment"
    shared_book.balance([{"g0", "g1", "l"}, {"g2"}])
    assert weights(server, *names, "l") == [0.5, 0.5, 1, 0.25, 1]
    shared_book.change("g0", Limits(weight=0.5), uid=ANA, busy={})
    shared_book.balance([{"g0", "g1", "l"}, {"g2"}])
    assert weights(server, "g0", "g1") == [0.333, 0.667]
    assert shared_book.entries["g0"].spec.weight == 0.5


def test_groups_may_come_and_go_while_others_are_told_their_weights(shared_book, server):  # noqa: F811
    for name in ("a", "b", "c"):
        join(shared_book, name, uid=ANA)
    telling = shared_book.balanced([{"a", "b", "c"}])
    assert next(telling) == "a"
    assert weights(server, "a", "b", "c") == [0.333, 0.5, 0.333], "nobody has to wait for all of them"
    shared_book.remove("b", uid=ANA)
    join(shared_book, "d", uid=ANA)
    assert list(telling) == []
    assert weights(server, "d") == [0.333]
    shared_book.balance([{"a", "c", "d"}])
    assert weights(server, "a", "c", "d") == [0.333] * 3


def test_a_user_without_a_quota_of_weights_has_as_many_as_groups(shared_book, book, server):  # noqa: F811
    for number in range(3):
        join(shared_book, f"r{number}", uid=0)
        join(book, f"d{number}", uid=DAEMON)
    every = {"r0", "r1", "r2", "d0", "d1", "d2"}
    for one in (shared_book, book):
        one.balance([every])
    assert weights(server, *sorted(every)) == [1.0] * 6


def test_what_root_gives_a_group_is_its_user_s(shared_book, server):  # noqa: F811
    join(shared_book, "a", uid=ANA)
    join(shared_book, "b", uid=ANA)
    shared_book.change("a", Limits(weight=3.0), uid=0, busy={})
    shared_book.balance([{"a", "b"}])
    assert weights(server, "a", "b") == [2.25, 0.75]


def test_a_group_that_the_configuration_takes_over_has_its_own_weight(shared_book, server):  # noqa: F811
    join(shared_book, "a", uid=ANA)
    join(shared_book, "b", uid=ANA)
    shared_book.balance([{"a", "b"}])
    read = files.parse("[groups.b]\nweight = 4", "gemlet.toml")
    shared_book.configure(read.groups, read.users)
    shared_book.balance([{"a", "b"}])
    assert weights(server, "a", "b") == [1.0, 4.0]


@given(
    own=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1.0), min_size=1),
    active=st.lists(st.sets(st.sampled_from("abcdefxy")), max_size=3),
    most=st.floats(0.5, 4.0),
)
def test_no_device_sees_more_than_the_quota(own, active, most):
    force = weights_in_force(own, active, max(1.0, most))
    assert force.keys() == own.keys()
    for there in active:
        assert sum(force[name] for name in own.keys() & there) <= max(1.0, most) * (1 + 1e-9)
    idle = own.keys() - set().union(*active)
    assert sum(force[name] for name in idle) <= max(1.0, most) * (1 + 1e-9)
    assert all(0 < force[name] <= own[name] * (1 + 1e-9) for name in own)


def test_a_group_that_a_program_made_by_itself_shares_the_weight(shared_book, server):  # noqa: F811
    server.makers = {"own": ANA}
    join(shared_book, "a", uid=ANA)
    assert shared_book.adopt("own") == []
    assert weights(server, "own") == [0.5]
    assert shared_book.entries["own"].spec.users == ("ana",)


def test_a_quota_of_somebody_unknown_is_a_warning(shared_book):  # noqa: F811
    (warning,) = shared_book.configure((), files.parse("[users.who]\nmin = 0.1", "gemlet.toml").users)
    assert warning == "users.who: no user who"


def test_a_group_that_a_program_made_by_itself_is_within_the_quota(ruled, server):  # noqa: F811
    server.makers = {"own": ANA, "more": ANA, "root's": 0}
    assert ruled.adopt("own") == []
    assert server.groups["own"]["memory"] == 4 * GIB
    assert server.groups["own"]["max"] == 0.5
    ruled.change("own", Limits(memory=10 * GIB), uid=ANA, busy={})
    (warning,) = ruled.adopt("more")
    assert "ana has 0 B of 10 GiB of memory left" in warning
    assert server.groups["more"]["memory"] == 0
    assert ruled.adopt("root's") == ruled.adopt("nobody's") == []
    assert "root's" not in server.groups


@pytest.mark.parametrize("name", ["\u202etxt", "a\u200bb", "\x9b31m", "@\ufeff"])
def test_a_group_whose_name_cannot_be_printed_is_nobodys(ruled, server, name):  # noqa: F811
    ruled._uid_of = {"ana": ANA, "root": 0}.__getitem__
    server.makers = {name: ANA, "own": ANA}
    (warning,) = ruled.adopt(name)
    assert "unprintable" in warning
    assert server.groups[name]["users"] == [0]  # at which the server drops ana's program
    assert ruled.adopt(name) == ruled.adopt("own") == []
    ruled.retell()
    ruled.balance([{name, "own"}])
    assert ruled.expire(0.0, {"own": 1}) == [name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[users.a]\nmemroy = 1", "2:1: unknown key 'memroy'"),
        ("[users.a]\nmin = 30", "2:7: min of users.a: 30 is more than 1"),
        ("[users.a]\ndefaults = { groups = 1 }", "2:14: unknown key 'groups'"),
        ("[users.a]\ngroups = -1", "2:10: groups of users.a"),
        ("[users.4294967296]\nmin = 0", "1:1: users: 4294967296 is not a uid"),
        ("users = 1", "users is a number, not a section"),
        ("[users]\na = 1", r"users\.a is a number, not a section"),
    ],
)
def test_what_is_wrong_with_a_section(text, message):
    with pytest.raises(ConfigError, match=message):
        files.parse(text, "gemlet.toml")
