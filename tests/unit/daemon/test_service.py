"""The daemon as a whole, with a fake server: what programs and people ask it."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from types import SimpleNamespace

import pytest

from gemlet.daemon import answers, logs, service
from gemlet.daemon.recent_usage import Row
from gemlet.errors import Refused
from gemlet.monitor import tables
from gemlet.monitor.reader import decode_status
from tests.unit.daemon import fakes
from tests.waiting import eventually


def test_join_grants_and_names_the_socket(start_daemon):
    daemon = start_daemon()
    joined = daemon.call("join", command="train", limits={"min": 0.25, "memory": 1 << 30})
    assert joined["socket"] == str(daemon.endpoint.clients)
    assert joined["granted"]["min"] == 0.25
    assert joined["granted"]["max"] == 1.0
    assert joined["machine"] is None
    assert daemon.server.groups[joined["group"]]["memory"] == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["python", "-u", "/home/ana/train.py", "--lr", "1"], "train-1"),
        (["python", "-m", "trainer.main"], "trainer.main-1"),
        (["python", "-c", "print(1)"], "python-1"),
        (["/usr/bin/bash", "run.sh"], "run-1"),
        (["./a.out", "x.py"], "a.out-1"),
        (["python3", "-m", "ipykernel_launcher"], "notebook-1"),
        ([], "python-1"),
    ],
)
def test_a_new_group_is_called_after_the_program_as_people_call_it(start_daemon, arguments, name):
    command = arguments[0] if arguments else "/usr/bin/python"
    assert start_daemon().call("join", command=command, arguments=arguments)["group"] == name


def test_join_for_a_device_that_is_not_there(start_daemon):
    with pytest.raises(Refused, match="no device 5"):
        start_daemon().call("join", device=5)


@pytest.mark.parametrize("devices", [["0", "5"], ["GPU-ff"], [fakes.UUID_TEXT, "GPU-ff"]])
def test_join_for_several_devices_of_which_one_is_not_there(start_daemon, devices):
    daemon = start_daemon()
    with pytest.raises(Refused, match=r"no device (5|GPU-ff)"):
        daemon.call("join", devices=devices)
    assert daemon.call("join", devices=["0", fakes.UUID_TEXT, fakes.UUID_TEXT[:8], "MIG-ff"])["group"]


def test_join_reads_the_servers_groups_once(start_daemon, monkeypatch):
    daemon = start_daemon()
    asked, by_join = [], []
    snapshot, join = daemon.server.snapshot, answers._join
    monkeypatch.setattr(daemon.server, "snapshot", lambda listed: asked.append(listed) or snapshot(listed))

    def counted(*arguments):  # nothing else has its turn in the event loop meanwhile
        before = len(asked)
        answer = join(*arguments)
        by_join.append(asked[before:])
        return answer

    monkeypatch.setattr(answers, "_join", counted)
    daemon.call("join", limits={"memory": 1 << 30})
    assert by_join == [[False]]  # of groups: users may have thousands of programs


def test_a_look_at_hundreds_of_groups_holds_for_a_while(start_daemon, monkeypatch):
    daemon, asked = start_daemon(), []
    snapshot, clock = daemon.server.snapshot, itertools.count()
    monkeypatch.setattr(daemon.server, "snapshot", lambda listed: asked.append(listed) or snapshot(listed))
    monkeypatch.setattr("gemlet.daemon.observer.LOOK_HOLDS", 1e6)
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))  # each look takes a second
    eventually(lambda: asked)
    for _ in range(20):
        daemon.call("join", group="team")
    assert asked.count(False) == 1


def test_join_says_whether_memory_can_move(start_daemon, tmp_path):
    daemon = start_daemon()
    assert daemon.call("join")["movable"] is False
    assert daemon.call("join", limits={"resident": 1 << 30})["movable"] is True


def test_what_a_program_has_to_say_is_in_the_log_in_one_line(start_daemon, caplog):
    daemon = start_daemon()
    daemon.call("note", topic="torch hook is off", text="the reason")
    (event,) = [e for e in daemon.call("events") if e["kind"] == "note"]
    assert event["text"] == "torch hook is off: the reason"
    assert event["pid"] == os.getpid()
    for text in ("two\nlines", "x" * 401):
        with pytest.raises(Refused):
            daemon.call("note", topic="torch hook is off", text=text)


HOSTILE_TEXT = "a\x1b[2J\x9b31m\u202egnp.exe\r\nroot\u2028"


def test_text_of_clients_is_printable_wherever_it_is_shown(start_daemon, capsys, monkeypatch):
    for name, value in (("handlers", []), ("propagate", True), ("level", logging.INFO)):
        monkeypatch.setattr(logging.getLogger("gemlet"), name, value)  # as it was, afterwards
    logs.configure()
    daemon = start_daemon()
    daemon.call("join", group="team", command=HOSTILE_TEXT)
    daemon.server.add_client("team", command=HOSTILE_TEXT)
    daemon.server.emit(
        kind="join", group=HOSTILE_TEXT, pid=77, uid=0, command=HOSTILE_TEXT, device=0, text=HOSTILE_TEXT
    )
    eventually(lambda: [event for event in daemon.call("events") if event["pid"] == 77])
    status = decode_status(daemon.call("status"))
    shown = tables.text(status).splitlines() + [json.dumps(daemon.call(op)) for op in ("status", "events")]
    shown += capsys.readouterr().err.splitlines()
    assert all(line.isprintable() for line in shown)
    assert sum("\\x1b[2J\\x9b31m\\u202egnp.exe" in line for line in shown) >= 3
    with pytest.raises(Refused) as caught:
        daemon.call("explain", group=HOSTILE_TEXT)
    assert "\x1b" not in str(caught.value)


def test_status_document(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team", limits={"min": 0.5})
    daemon.server.add_client("team", pid=77, memory=5)
    document = daemon.call("status")
    assert document["schema"] == 2
    assert document["simulated"] is False
    assert document["daemon"]["pid"] == os.getpid()
    (device,) = document["devices"]
    assert device["uuid"] == fakes.UUID_TEXT
    assert device["name"] == "Fake H200"
    assert device["utilization"] == 0.25
    (group,) = device["groups"]
    assert group["clients"][0]["pid"] == 77
    assert group["share"].keys() == {"1s", "10s", "60s"}
    assert daemon.groups()["team"]["clients"] == 1


def test_share_is_measured(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    daemon.server.add_client("team")
    begin = time.monotonic_ns()

    def half_used():
        daemon.server.used_ns["team"] = (time.monotonic_ns() - begin) // 2
        share = daemon.call("status")["devices"][0]["groups"][0]["share"]["1s"]
        return share is not None and abs(share - 0.5) < 0.1

    eventually(half_used)


def test_set_changes_the_live_group(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    answer = daemon.call("set", group="team", limits={"max": 0.4, "memory": 123, "users": []})
    assert answer["granted"]["max"] == 0.4
    assert daemon.server.groups["team"]["max"] == 0.4
    assert daemon.call("set", group="team", limits={"memory": "none"})["granted"]["memory"] is None


def test_explain(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team", limits={"min": 0.3, "memory": 8 << 30})
    assert "no clients" in " ".join(daemon.call("explain", group="team")["lines"])
    daemon.server.add_client("team", memory=15 << 29)
    told = daemon.call("explain", group="team")
    words = " ".join(told["lines"])
    assert "below its minimum" in words
    assert "30%" in words
    assert "--memory" in told["hint"]
    with pytest.raises(Refused, match="no group other"):
        daemon.call("explain", group="other")


def test_native_events_are_numbered_and_booked(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    daemon.server.add_client("team", pid=77)
    daemon.inventory.held[77] = 600 << 20
    daemon.server.emit(kind="context", group="team", pid=77, uid=0, command="x", device=0, text="1")
    daemon.server.emit(kind="refused", group="team", pid=77, uid=0, command="x", device=None, text=str(6 << 30))
    events = eventually(lambda: [e for e in daemon.call("events") if e["kind"] == "refused"])
    assert "6 GiB" in events[0]["text"]
    assert daemon.call("events", since=events[0]["number"]) == []
    eventually(lambda: daemon.server.process_memory.get((fakes.UUID, 77)) == 600 << 20)


def test_history(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    samples = eventually(lambda: daemon.call("history", seconds=60))
    assert samples[0].keys() == {"now_ns", "groups"}


def test_a_directory_of_users_that_does_not_answer_stops_nothing(start_daemon, tmp_path, monkeypatch):
    answers_now = threading.Event()

    def looked_up(name):
        answers_now.wait()
        return SimpleNamespace(pw_uid=70000 + len(name))

    monkeypatch.setattr("gemlet.daemon.users.pwd.getpwnam", looked_up)
    monkeypatch.setattr("gemlet.daemon.service.USERS_SECONDS", 0.05)
    config = tmp_path / "gemlet.toml"
    config.write_text('[groups.team]\nusers = ["ana"]\n')
    try:
        daemon = start_daemon(config=str(config))
        assert daemon.server.groups["team"]["users"] == [os.getuid()], "open to nobody else"
        daemon.call("join", group="own")
        with pytest.raises(Refused, match="user luis is not known"):
            daemon.call("set", group="own", limits={"users": ["luis"]})
        assert daemon.groups()["own"]["users"] == []
    finally:
        answers_now.set()
    eventually(lambda: daemon.server.groups["team"]["users"] == [70003])
    eventually(lambda: daemon.service.users.uid_of("luis") == 70004)
    daemon.call("set", group="own", limits={"users": ["luis"]})
    assert daemon.server.groups["own"]["users"] == [70004]


def test_the_groups_of_a_user_share_the_user_s_weight(start_daemon, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text('[users."*"]\nweight = 1\n')
    daemon = start_daemon(config=str(config))
    for name in ("a", "b", "idle"):
        daemon.server.makers[name] = 70001
        daemon.server.emit(kind="join", group=name, pid=5, uid=70001)
        eventually(lambda name=name: name in daemon.server.groups)
    begin = time.monotonic_ns()

    def shared() -> bool:
        for name in ("a", "b"):
            daemon.server.used_ns[name] = time.monotonic_ns() - begin
        found = {name: round(group["weight"], 3) for name, group in daemon.server.groups.items()}
        return found == {"a": 0.5, "b": 0.5, "idle": 0.333}

    eventually(shared)

    def told() -> float:  # the status may be of the moment before
        [device] = daemon.call("status")["devices"]
        return next(round(group["weight"], 3) for group in device["groups"] if group["name"] == "a")

    eventually(lambda: told() == 0.5)
    assert daemon.groups()["a"]["weight"] == 1.0


def test_an_answer_of_the_history_is_bounded_and_has_the_newest(monkeypatch):
    monkeypatch.setattr("gemlet.daemon.answers.MAX_HISTORY_ROWS", 4)
    rows = [Row(bytes(16), name, 0, 0) for name in ("a", "b")]
    samples = [(number, rows) for number in reversed(range(20))]
    observer = SimpleNamespace(recent_usage=SimpleNamespace(since=lambda _: samples))
    service = SimpleNamespace(observer=observer)
    assert [sample["now_ns"] for sample in answers._history(service, 60)] == [18, 19]


def test_a_driver_that_does_not_answer_is_waited_for(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.observer.DEVICES_SECONDS", 0.02)
    monkeypatch.setattr(fakes.FakeInventory, "broken", True, raising=False)
    monkeypatch.setattr(fakes.FakeInventory, "__init__", lambda self: setattr(self, "held", {}))
    daemon = start_daemon()
    assert daemon.call("status")["devices"] == []
    daemon.inventory.broken = False
    eventually(lambda: daemon.call("status")["devices"])


def test_the_history_is_recorded_and_read(start_daemon, tmp_path):
    daemon = start_daemon(history=tmp_path / "state" / "history.db")
    daemon.call("join", group="g", limits={"min": 0.25})
    daemon.server.add_client("g", pid=os.getpid())
    daemon.server.used_ns["g"] = 10**9

    def series():
        found = daemon.call("recorded", group="g", since=60)["series"]
        return found if found and any(found[0]["values"]["min"]) else None

    [found] = eventually(series)
    assert 0.25 in found["values"]["min"]
    devices = daemon.call("recorded", group="", since=60, columns=["power"])["series"]
    assert [set(device["values"]) for device in devices] == [{"power"}]
    assert daemon.call("status")["daemon"]["history"] is None
    daemon.stop()
    assert start_daemon(history=tmp_path / "state" / "history.db").call("recorded", group="g", since=60)["series"]


def test_a_daemon_without_history_says_so(start_daemon):
    daemon = start_daemon()
    with pytest.raises(Refused, match="keeps no history"):
        daemon.call("recorded")
    assert daemon.call("status")["daemon"]["history"] == "it is off"


def test_claims_of_clients_are_compared_with_the_drivers_account(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    for pid in (77, 78, 79):
        daemon.server.add_client("team", pid=pid)
    daemon.inventory.held.update({77: 600 << 20, 78: None})  # it hides one's, and knows nothing of the third
    known = eventually(lambda: daemon.server.confirmed if (fakes.UUID, 79) in daemon.server.confirmed else None)
    assert known == {(fakes.UUID, 77): 600 << 20, (fakes.UUID, 79): 0}


def test_a_group_of_which_no_event_told_is_taken_into_the_book(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.01)
    daemon = start_daemon()
    adopted: list[str] = []
    monkeypatch.setattr(daemon.service.book, "adopt", lambda name: adopted.append(name) or [])
    daemon.server.add_client("own")
    eventually(lambda: "own" in adopted)


@pytest.mark.parametrize("told", [True, False])
def test_the_limits_of_a_group_that_a_program_made_survive_the_daemon(start_daemon, tmp_path, monkeypatch, told):
    """The next one did not know the group, so its programs had no part in the turns until they ended."""
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.01)
    config = tmp_path / "gemlet.toml"
    config.write_text('[users."*"]\nmemory = "20GiB"\n')
    daemon = start_daemon(config=str(config))
    daemon.server.makers["own"] = 70001
    if told:
        daemon.server.emit(kind="join", group="own", pid=5, uid=70001)
    else:  # of its events one was lost
        daemon.server.add_client("own")
    eventually(lambda: daemon.endpoint.state.exists() and '"own"' in daemon.endpoint.state.read_text())


def test_many_events_are_taken_one_lot_after_the_other(start_daemon):
    daemon = start_daemon()
    before = daemon.service.events.last()
    for count in (service.MANY_EVENTS, 1, service.MANY_EVENTS, 1):
        daemon.server.events += [{"kind": "refused", "group": "g", "text": "1"}] * count
        daemon.server.emit(kind="leave", group="g")
        eventually(lambda: not daemon.server.events)
    eventually(lambda: daemon.service.events.last() - before >= 2 * service.MANY_EVENTS + 6)
