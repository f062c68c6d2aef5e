"""The group book: who may do what, what is guaranteed, and when a group goes."""

from __future__ import annotations

import asyncio

import pytest

from gemlet.daemon.group_entry import LINGER_SECONDS, Entry
from gemlet.daemon.groups import RESTORED_LINGER_SECONDS, GroupBook
from gemlet.daemon.requests import Limits
from gemlet.daemon.users import Users
from gemlet.errors import Refused
from gemlet.model import GroupSpec, Priority
from tests.unit.daemon import fakes

GIB = 1024**3
DAEMON, ANA, LUIS = 1000, 2001, 2002
NAMES = {DAEMON: "daemon", ANA: "ana", LUIS: "luis", 0: "root"}


class Process:
    def __init__(self) -> None:
        self.running = True

    def alive(self) -> bool:
        return self.running


def uid_of(name: str) -> int:
    for uid, known in NAMES.items():
        if known == name:
            return uid
    raise Refused(f"no user {name}")


@pytest.fixture
def server():
    return fakes.FakeServer()


@pytest.fixture
def book(server):
    return GroupBook(server, owner=DAEMON, shared=False, uid_of=uid_of, name_of=NAMES.__getitem__)


@pytest.fixture
def shared_book(server):
    return GroupBook(server, owner=0, shared=True, uid_of=uid_of, name_of=NAMES.__getitem__)


def join(book, name=None, *, uid=DAEMON, command="train", launcher=None, device=None, busy=None, **limits):
    return book.join(
        name, Limits(**limits), command=command, uid=uid, launcher=launcher, device=device, busy=busy or {}
    )


def test_names_are_unique_and_tell_the_command(book):
    names = [join(book, command=command).spec.name for command in ("/usr/bin/train", "train", "a b;c", "..")]
    assert names[0] == "train-1"
    assert len(set(names)) == 4
    assert all(" " not in name and ";" not in name for name in names)


def test_limits_reach_the_server(book, server):
    join(
        book, "g", min=0.3, max=0.6, memory=8 << 30, resident=4 << 30, priority="latency", weight=2.0, sm=0.5,
        workload="memory",
    )  # fmt: skip
    assert server.groups["g"] == {
        "min": 0.3,
        "max": 0.6,
        "memory": 8 << 30,
        "resident": 4 << 30,
        "priority": "latency",
        "weight": 2.0,
        "sm": 0.5,
        "workload": "memory",
        "slowdown": 1.1,
        "gang": "auto",
        "users": None,
    }


def test_min_above_max_is_refused_and_nothing_is_made(book, server):
    with pytest.raises(Refused, match="min"):
        join(book, "g", min=0.6, max=0.3)
    assert not book.entries
    assert not server.groups


@pytest.mark.parametrize("how", ["a client", "a launcher", "restored"])
def test_joining_a_group_in_use_without_limits_keeps_them(book, how):
    entry = join(book, "g", min=0.3, launcher=Process() if how == "a launcher" else None)
    if how == "restored":  # its programs may still be on their way back
        entry.linger = RESTORED_LINGER_SECONDS
    assert join(book, "g", busy={"g": 1} if how == "a client" else None).spec.min == 0.3


def test_a_group_that_nobody_uses_any_more_is_made_anew(book, server):
    process = Process()
    join(book, "g", min=0.3, memory=GIB, launcher=process)
    book.change("g", Limits(max=0.5, users=["ana"]), uid=DAEMON, busy={})
    process.running = False
    spec = join(book, "g", max=0.8).spec
    assert (spec.min, spec.max, spec.memory, spec.users) == (0.0, 0.8, None, ())
    assert server.groups["g"]["memory"] is None


def test_another_users_group_is_not_made_anew(shared_book):
    join(shared_book, "g", uid=ANA, max=0.5)
    shared_book.change("g", Limits(users=["ana", "luis"]), uid=ANA, busy={})
    assert join(shared_book, "g", uid=LUIS).spec.max == 0.5
    assert join(shared_book, "g", uid=ANA).spec.users == ("ana",)  # as it would be without its past


def test_who_may_not_join_is_known_before(shared_book, server):
    """As `gemlet env` has to: it makes nothing, and its programs join by themselves."""
    join(shared_book, "g", uid=ANA)
    server.makers["own"] = ANA
    for name in ("g", "own"):
        assert [shared_book.closed_to(name, uid) for uid in (ANA, 0)] == [None, None]
        closed = shared_book.closed_to(name, LUIS)
        assert closed is not None
        assert closed.hint is not None
        assert closed.hint.startswith("choose another --group")
    assert shared_book.closed_to("nobody's", LUIS) is None


def test_a_minimum_above_the_maximum_raises_nothing_by_itself(book, server):
    join(book, "g", max=0.5)
    with pytest.raises(Refused, match="min 90% is more than max 50%") as caught:
        book.change("g", Limits(min=0.9), uid=DAEMON, busy={})
    assert "raise max, too" in caught.value.hint
    assert server.groups["g"]["max"] == 0.5
    book.change("g", Limits(min=0.9, max=0.9), uid=DAEMON, busy={})


def test_joining_again_with_limits_changes_them(book, server):
    join(book, "g", min=0.3)
    join(book, "g", min=0.4)
    assert server.groups["g"]["min"] == 0.4


def test_a_configured_group_is_not_changed_by_joining(book, server):
    book.configure([GroupSpec(name="g", min=0.2)])
    with pytest.raises(Refused, match="has other limits"):
        join(book, "g", min=0.3)
    assert server.groups["g"]["min"] == 0.2
    assert join(book, "g", min=0.2).origin == "configuration"


# --- guarantees --------------------------------------------------------------------------------------------------


def test_minima_never_pass_one(book, server):
    join(book, "a", min=0.6, launcher=Process())
    with pytest.raises(Refused, match="cannot be guaranteed") as refusal:
        join(book, "b", min=0.5, launcher=Process())
    assert "a holds 60%" in refusal.value.message
    assert refusal.value.hint == "ask for --min 40% or less, or for another device with `gemlet run --device`"
    assert "b" not in server.groups
    join(book, "b", min=0.4, launcher=Process())


def test_where_nothing_can_be_guaranteed_no_minimum_of_nothing_is_proposed(book):
    join(book, "a", min=0.995, launcher=Process())
    with pytest.raises(Refused) as refusal:
        join(book, "b", min=0.5, launcher=Process())
    assert refusal.value.hint == (
        "leave out --min, lower the minimum of another group with `gemlet set`, "
        "or ask for another device with `gemlet run --device`"
    )


def test_floating_point_does_not_refuse_what_sums_to_one(book):
    for name, share in (("a", 0.1), ("b", 0.2), ("c", 0.7)):
        join(book, name, min=share, launcher=Process())


def test_minima_on_different_devices_do_not_meet(book):
    join(book, "a", min=0.8, device=0, launcher=Process())
    join(book, "b", min=0.8, device=1, launcher=Process())
    with pytest.raises(Refused):
        join(book, "c", min=0.3, launcher=Process())


def test_a_minimum_is_in_force_on_its_device_alone(book, server):
    join(book, "a", min=0.8, device=1, launcher=Process())
    join(book, "b", min=0.1, launcher=Process())
    assert server.reserved_on == {"a": 1, "b": None}
    book.change("a", Limits(min=0.5), uid=DAEMON, busy={})
    assert server.reserved_on["a"] == 1


def test_a_minimum_holds_on_the_devices_of_all_that_join(book, server):
    """Before, a second program on another device was told of a minimum that held on the first one's alone."""
    join(book, "a", min=0.8, device=0, launcher=Process())
    join(book, "a", launcher=Process())
    join(book, "a", min=0.8, device=0, launcher=Process())
    assert server.reserved_on["a"] == 0
    join(book, "a", device=1, launcher=Process())
    assert server.reserved_on["a"] is None
    with pytest.raises(Refused, match="a holds 80%"):
        join(book, "b", min=0.3, device=1, launcher=Process())


def test_a_minimum_that_the_next_device_has_no_room_for_is_refused(book, server):
    join(book, "a", min=0.8, device=0, launcher=Process())
    join(book, "b", min=0.3, device=1, launcher=Process())
    with pytest.raises(Refused, match="b holds 30%"):
        join(book, "a", device=1, launcher=Process())
    assert server.reserved_on["a"] == 0


def test_a_group_that_only_lingers_makes_room(book, server):
    join(book, "a", min=0.8)
    join(book, "b", min=0.8, launcher=Process())
    assert set(server.groups) == {"b"}


def test_a_group_whose_programs_may_be_on_their_way_back_makes_no_room(book, server):
    """After a restart of the daemon: it would be gone when they come, and its limits with it."""
    book.restore(Entry(spec=GroupSpec(name="a", min=0.8), origin="run", owner=DAEMON))
    with pytest.raises(Refused, match="a holds 80%"):
        join(book, "b", min=0.8, launcher=Process())
    assert set(server.groups) == {"a"}


def test_a_minimum_on_every_device_needs_room_on_each_of_them(book, server):
    join(book, "a", min=0.6, device=0, launcher=Process())
    join(book, "b", min=0.6, device=1, launcher=Process())
    join(book, "c", min=0.4, launcher=Process())
    assert server.groups["c"]["min"] == 0.4
    with pytest.raises(Refused, match="a holds 60% and c holds 40%"):
        join(book, "d", min=0.1, launcher=Process())


def test_what_only_lingers_makes_room_on_each_device(book, server):
    for device in range(3):
        join(book, f"g{device}", min=0.8, device=device)
    join(book, "all", min=0.5, launcher=Process())
    assert set(server.groups) == {"all"}


def test_a_group_with_clients_does_not_make_room(book):
    join(book, "a", min=0.8)
    with pytest.raises(Refused):
        join(book, "b", min=0.8, busy={"a": 1})


def test_raising_a_minimum_is_admitted_like_a_new_one(book, server):
    join(book, "a", min=0.5, launcher=Process())
    join(book, "b", min=0.5, launcher=Process())
    with pytest.raises(Refused):
        book.change("b", Limits(min=0.6), uid=DAEMON, busy={})
    assert server.groups["b"]["min"] == 0.5
    assert book.change("b", Limits(min=0.4), uid=DAEMON, busy={}).spec.min == 0.4


# --- who may -----------------------------------------------------------------------------------------------------


def test_only_the_owner_or_root_changes_a_group(shared_book):
    join(shared_book, "a", uid=ANA)
    with pytest.raises(Refused, match="ana or root"):
        shared_book.change("a", Limits(max=0.1), uid=LUIS, busy={})
    with pytest.raises(Refused, match="ana or root"):
        shared_book.remove("a", uid=LUIS)
    shared_book.change("a", Limits(max=0.5), uid=ANA, busy={})
    shared_book.change("a", Limits(max=0.6), uid=0, busy={})


def test_a_configured_group_of_a_shared_daemon_belongs_to_root(shared_book):
    shared_book.configure([GroupSpec(name="g")])
    with pytest.raises(Refused, match="root"):
        shared_book.change("g", Limits(max=0.5), uid=ANA, busy={})
    join(shared_book, "g", uid=ANA)


def test_groups_of_others_are_closed(shared_book, server):
    join(shared_book, "a", uid=ANA)
    assert server.groups["a"]["users"] == [ANA]
    with pytest.raises(Refused, match="not open to luis"):
        join(shared_book, "a", uid=LUIS)


def test_users_may_be_let_in(shared_book, server):
    join(shared_book, "a", uid=ANA)
    shared_book.change("a", Limits(users=["ana", "luis"]), uid=ANA, busy={})
    assert server.groups["a"]["users"] == [ANA, LUIS]
    join(shared_book, "a", uid=LUIS)
    with pytest.raises(Refused, match="no user"):
        shared_book.change("a", Limits(users=["nobody-here"]), uid=ANA, busy={})


@pytest.mark.parametrize("users", [("ana", "luis"), ()])
def test_limits_for_another_users_group_are_refused_even_where_it_has_them(shared_book, users):
    join(shared_book, "hub-luis", uid=ANA, max=0.5, users=[*users])
    with pytest.raises(Refused, match="is ana's") as caught:
        join(shared_book, "hub-luis", uid=LUIS, max=0.5)
    assert "without limits" in caught.value.hint
    joined = join(shared_book, "hub-luis", uid=LUIS)  # by agreement
    assert joined.owner == ANA
    assert shared_book.ruled_by_another(joined, LUIS)
    assert not shared_book.ruled_by_another(joined, ANA)
    join(shared_book, "hub-luis", uid=0, max=0.5)


def test_limits_that_a_group_of_root_has_may_be_asked_for(shared_book):
    join(shared_book, "team", uid=0, max=0.5)
    assert join(shared_book, "team", uid=LUIS, max=0.5).owner == 0


def test_names_that_begin_with_an_at_are_made_by_administrators_alone(shared_book, server):
    for limits in ({}, {"users": ["ana", "luis"]}):
        with pytest.raises(Refused, match="ana cannot make group @slurm-1"):
            join(shared_book, "@slurm-1", uid=ANA, **limits)
    assert not server.groups
    made = join(shared_book, "@slurm-1", uid=0, min=0.3, users=["luis"])
    assert (made.owner, server.groups["@slurm-1"]["users"]) == (0, [LUIS])
    with pytest.raises(Refused, match="not open to ana"):
        join(shared_book, "@slurm-1", uid=ANA)
    assert join(shared_book, "@slurm-1", uid=LUIS).spec.min == 0.3
    with pytest.raises(Refused, match=r"changed only by root$"):
        shared_book.change("@slurm-1", Limits(max=1.0, min=0.9), uid=LUIS, busy={})
    shared_book.configure([GroupSpec(name="@team")])
    assert join(shared_book, "@team", uid=ANA).origin == "configuration"


def test_the_user_of_a_daemon_gives_any_name(book):
    assert join(book, "@mine").owner == DAEMON


def test_a_program_that_gives_itself_a_reserved_name_leaves_and_the_name_is_free(shared_book, server):
    server.makers["@slurm-1"] = ANA
    (warning,) = shared_book.adopt("@slurm-1")
    assert "ana cannot make group @slurm-1" in warning
    assert server.groups["@slurm-1"]["users"] == [0]  # at which the server drops ana's program
    with pytest.raises(Refused, match="not open to ana"):
        join(shared_book, "@slurm-1", uid=ANA)
    assert shared_book.expire(0.0, {"@slurm-1": 1}) == []  # until its teardown is over
    made = join(shared_book, "@slurm-1", uid=0, max=0.5, users=["luis"], busy={"@slurm-1": 1})
    assert (made.owner, made.spec.max, server.groups["@slurm-1"]["users"]) == (0, 0.5, [LUIS])
    server.makers["@slurm-2"] = ANA
    shared_book.adopt("@slurm-2")
    assert shared_book.expire(1.0, {}) == ["@slurm-2"]


def test_root_takes_a_reserved_name_before_the_daemon_has_heard_of_its_program(shared_book, server):
    server.makers["@slurm-1"] = ANA
    made = join(shared_book, "@slurm-1", uid=0, min=0.3, users=["luis"])
    assert (made.owner, made.spec.min, server.groups["@slurm-1"]["users"]) == (0, 0.3, [LUIS])
    server.makers["@slurm-2"] = ANA
    with pytest.raises(Refused, match="cannot make"):
        join(shared_book, "@slurm-2", uid=ANA)


def test_no_user_is_looked_up_after_an_unknown_one(shared_book, monkeypatch):
    asked = []
    monkeypatch.setattr(shared_book, "_uid_of", lambda name: asked.append(name) or uid_of(name))
    with pytest.raises(Refused, match="no user who"):
        join(shared_book, "a", uid=ANA, users=["ana", "who", "what", "luis"])
    assert asked[-1] == "who"


def test_one_user_cannot_name_users_without_end(shared_book, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.groups.MAX_NAMED", 5)
    join(shared_book, "a", uid=ANA, users=["ana", "luis"])
    join(shared_book, "b", uid=ANA, users=["ana", "luis"])
    with pytest.raises(Refused, match="name 4 users already"):
        join(shared_book, "c", uid=ANA, users=["ana", "luis"])
    join(shared_book, "c", uid=ANA)
    join(shared_book, "l", uid=LUIS, users=["ana", "luis"])


def test_one_user_cannot_fill_a_shared_daemon(shared_book, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.groups.MAX_GROUPS", 3)
    for _ in range(3):
        join(shared_book, uid=ANA)
    with pytest.raises(Refused, match="ana has 3 groups"):
        join(shared_book, uid=ANA)
    join(shared_book, uid=LUIS)


def test_a_process_keeps_a_group_once(book):
    process = Process()
    for _ in range(4):
        join(book, "g", launcher=process)
    assert book.entries["g"].launchers == [process]


# --- change ------------------------------------------------------------------------------------------------------


def test_change_is_seen_in_the_answer_and_in_the_book(book, server):
    join(book, "g")
    entry = book.change("g", Limits(max=0.5, memory=1 << 30, priority="best-effort"), uid=DAEMON, busy={})
    assert entry is book.entries["g"]
    assert (entry.spec.max, entry.spec.memory, entry.spec.priority) == (0.5, 1 << 30, Priority.BEST_EFFORT)
    assert server.groups["g"]["max"] == 0.5
    assert book.change("g", Limits(memory="none"), uid=DAEMON, busy={}).spec.memory is None


def test_nothing_to_change_is_refused(book):
    join(book, "g")
    with pytest.raises(Refused, match="nothing to change"):
        book.change("g", Limits(), uid=DAEMON, busy={})


def test_unknown_group(book):
    with pytest.raises(Refused, match="no group x"):
        book.change("x", Limits(max=0.5), uid=DAEMON, busy={})


def test_what_the_server_refuses_changes_nothing(book, server, monkeypatch):
    join(book, "g", max=0.7)
    monkeypatch.setattr(server, "set_group", lambda *_, **__: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(Refused, match="no"):
        book.change("g", Limits(max=0.5), uid=DAEMON, busy={})
    assert book.entries["g"].spec.max == 0.7


# --- time --------------------------------------------------------------------------------------------------------


def test_a_group_made_on_the_fly_outlives_its_last_process_by_a_moment(book, server):
    process = Process()
    join(book, "g", launcher=process)
    assert book.expire(0.0, {}) == []
    process.running = False
    assert book.expire(100.0, {"g": 1}) == []
    assert book.expire(200.0, {}) == []
    assert book.expire(200.0 + LINGER_SECONDS - 0.1, {}) == []
    assert book.expire(200.0 + LINGER_SECONDS, {}) == ["g"]
    assert not server.groups


def test_coming_back_in_time_keeps_it(book):
    join(book, "g")
    book.expire(0.0, {})
    assert book.expire(3.0, {"g": 1}) == []
    assert book.expire(6.0, {}) == []


def test_a_configured_group_stays(book):
    book.configure([GroupSpec(name="g")])
    assert book.expire(0.0, {}) == []
    assert book.expire(1e6, {}) == []


def test_a_group_no_longer_configured_goes_with_its_last_client(book, server):
    book.configure([GroupSpec(name="g", min=0.5)])
    server.add_client("g")
    book.configure([])
    assert book.expire(0.0, {"g": 1}) == []
    server.clients.clear()
    assert book.expire(1.0, {}) == ["g"]


def test_who_joins_a_group_that_is_no_longer_configured_does_not_keep_it_for_ever(shared_book):
    shared_book.configure([GroupSpec(name="g", min=0.5, users=("ana",))])
    shared_book.configure([])
    program = Process()
    join(shared_book, "g", uid=ANA, launcher=program)
    assert shared_book.expire(0.0, {}) == []
    program.running = False
    assert shared_book.expire(1.0, {}) == ["g"]


def test_a_group_that_is_configured_again_stays(book):
    book.configure([GroupSpec(name="g")])
    book.configure([])
    book.configure([GroupSpec(name="g")])
    assert book.expire(0.0, {}) == []


def test_reload_changes_only_what_changed(book, server):
    book.configure([GroupSpec(name="a"), GroupSpec(name="b")])
    server.groups.clear()
    assert book.configure([GroupSpec(name="a"), GroupSpec(name="b", max=0.5)]) == []
    assert list(server.groups) == ["b"]


def test_configuration_takes_over_a_group_made_on_the_fly(book):
    join(book, "g", uid=DAEMON)
    book.configure([GroupSpec(name="g", min=0.4)])
    assert book.entries["g"].origin == "configuration"
    assert book.expire(1e6, {}) == []


def test_restored_groups_wait_longer(book):
    book.restore(Entry(spec=GroupSpec(name="g", max=0.3), origin="run", owner=DAEMON))
    book.expire(0.0, {})
    assert book.expire(LINGER_SECONDS + 1, {}) == []
    assert book.expire(RESTORED_LINGER_SECONDS, {}) == ["g"]


def test_in_use(book):
    assert not book.in_use({})
    process = Process()
    join(book, "g", launcher=process)
    assert book.in_use({})
    process.running = False
    assert not book.in_use({})
    assert book.in_use({"g": 1})


def test_removing_a_group_with_clients_is_refused(book, server):
    join(book, "g")
    server.add_client("g")
    with pytest.raises(Refused, match="has clients"):
        book.remove("g", uid=DAEMON)
    server.clients.clear()
    book.remove("g", uid=DAEMON)
    assert not book.entries


def test_a_group_that_programs_made_by_themselves_belongs_to_their_user(shared_book, server):
    server.makers["team"] = ANA
    for taker in (LUIS, DAEMON):
        with pytest.raises(Refused, match="programs of ana use group team"):
            join(shared_book, "team", uid=taker, max=0.01)
    assert "team" not in server.groups
    entry = join(shared_book, "team", uid=0)  # root may, but does not take it
    assert (entry.owner, entry.spec.users) == (ANA, ("ana",))
    join(shared_book, "team", uid=ANA, max=0.5)
    with pytest.raises(Refused):
        join(shared_book, "team", uid=LUIS)


def test_a_free_name_is_not_that_of_a_group_made_by_programs(shared_book, server):
    server.makers["train-1"] = LUIS
    assert join(shared_book, uid=ANA).spec.name == "train-2"


def test_a_share_is_open_to_nobody_who_does_not_come_through_its_socket(shared_book, server):
    shared_book.share("pod", Limits(), socket="/run/gemlet/pod/socket")
    assert server.groups["pod"]["users"] == [0]
    with pytest.raises(Refused, match="its socket"):
        join(shared_book, "pod", uid=ANA)
    shared_book.change("pod", Limits(max=0.5), uid=0, busy={})
    assert server.groups["pod"]["users"] == [0]


@pytest.mark.parametrize(
    ("directory", "user"),
    [
        ({ANA: "ana", "ana": ANA}, "ana"),
        ({ANA: "ana", "ana": LUIS}, str(ANA)),
        ({ANA: str(LUIS), str(LUIS): ANA}, str(ANA)),
        ({}, str(ANA)),
    ],
    ids=["known", "the name is another's", "the name is another's number", "without a name"],
)
def test_a_user_whom_the_daemon_has_not_seen_before_has_a_group_at_once(server, directory, user):
    users = Users(directory.get)
    asyncio.run(users.learn([ANA]))
    book = GroupBook(server, owner=0, shared=True, uid_of=users.uid_of, name_of=users.name_of)
    assert join(book, "mine", uid=ANA).spec.users == (user,)
    assert server.groups["mine"]["users"] == [ANA]
    with pytest.raises(Refused, match="not open to"):
        join(book, "mine", uid=LUIS)
