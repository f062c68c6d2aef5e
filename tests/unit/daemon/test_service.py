"""The daemon as a whole, with a fake server: groups over the API, reload, restart, idleness."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from gemlet.config import files
from gemlet.daemon import address, answers, autostart, logs
from gemlet.daemon.autostart import log_tail
from gemlet.daemon.connection import Connection
from gemlet.daemon.recent_usage import Row
from gemlet.errors import ConfigError, DaemonUnreachable, Refused
from gemlet.monitor import tables
from gemlet.monitor.reader import decode_status
from tests.unit.daemon import fakes


def eventually(condition, seconds=60.0):
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, "did not happen in time"
        time.sleep(0.005)
    return value


def groups(daemon):
    return {group["name"]: group for group in daemon.call("status")["groups"]}


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


def test_join_reads_the_servers_state_once(start_daemon, monkeypatch):
    daemon = start_daemon()
    asked, by_join = [], []
    snapshot, join = daemon.server.snapshot, answers._join
    monkeypatch.setattr(daemon.server, "snapshot", lambda: asked.append(1) or snapshot())

    def counted(*arguments):  # nothing else has its turn in the event loop meanwhile
        before = len(asked)
        answer = join(*arguments)
        by_join.append(len(asked) - before)
        return answer

    monkeypatch.setattr(answers, "_join", counted)
    daemon.call("join", limits={"memory": 1 << 30})
    assert by_join == [1]


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
    assert groups(daemon)["team"]["clients"] == 1


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
        assert groups(daemon)["own"]["users"] == []
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
    assert groups(daemon)["a"]["weight"] == 1.0


def test_an_answer_of_the_history_is_bounded_and_has_the_newest(monkeypatch):
    monkeypatch.setattr("gemlet.daemon.answers.MAX_HISTORY_ROWS", 4)
    rows = [Row(bytes(16), name, 0, 0) for name in ("a", "b")]
    samples = [(number, rows) for number in reversed(range(20))]
    service = SimpleNamespace(recent_usage=SimpleNamespace(since=lambda _: samples))
    assert [sample["now_ns"] for sample in answers._history(service, 60)] == [18, 19]


def test_a_driver_that_does_not_answer_is_waited_for(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.DEVICES_SECONDS", 0.02)
    monkeypatch.setattr(fakes.FakeInventory, "broken", True, raising=False)
    monkeypatch.setattr(fakes.FakeInventory, "__init__", lambda self: setattr(self, "held", {}))
    daemon = start_daemon()
    assert daemon.call("status")["devices"] == []
    daemon.inventory.broken = False
    eventually(lambda: daemon.call("status")["devices"])


# --- configuration -----------------------------------------------------------------------------------------------

NATIVE = "[groups.team]\nmin = {}\nmax = 0.9\n"
KEYFILE = "[team]\nMinUtil = {}\nMaxUtil = 0.9\n"
TABLE = "1\nteam {} 0.9 1000000\n"


@pytest.mark.parametrize(
    ("name", "form"), [("gemlet.toml", NATIVE), ("resource.conf", KEYFILE), ("resource-config.txt", TABLE)]
)
@pytest.mark.parametrize("how", ["in place", "rename"])
def test_a_change_applies(start_daemon, tmp_path, name, form, how):
    path = tmp_path / name
    path.write_text(form.format(0.2))
    daemon = start_daemon(config=str(path))
    (key,) = daemon.server.groups
    for share in (0.3, 0.6):
        if how == "in place":
            path.write_text(form.format(share))
        else:
            fresh = path.with_suffix(".fresh")
            fresh.write_text(form.format(share))
            fresh.rename(path)
        eventually(lambda share=share: daemon.server.groups[key]["min"] == share)


def test_a_malformed_change_is_refused_and_told(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    path.write_text(NATIVE.format('"lots"'))
    event = eventually(lambda: [e for e in daemon.call("events") if e["kind"] == "configuration"])[-1]
    assert f"{path}:2:" in event["text"]
    assert daemon.server.groups["team"]["min"] == 0.2
    path.unlink()
    time.sleep(0.1)
    assert daemon.server.groups["team"]["min"] == 0.2
    path.write_text(NATIVE.format(0.7))
    eventually(lambda: daemon.server.groups["team"]["min"] == 0.7)


HOSTILE = {
    "user": '[groups.team]\nusers = ["4294967296"]',
    "NUL": '[groups.team]\nusers = ["a\\u0000b"]',
    "arrays": "[groups.team]\nusers = " + "[" * 5000 + "]" * 5000,
    "key": "[groups]\n" + ".".join("a" * 20_000) + " = 1",
    "digits": "[groups.team]\nmemory = " + "9" * 5000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_content_of_the_file_ends_the_daemon(start_daemon, tmp_path, what):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    path.write_text(HOSTILE[what])
    assert f"{path}:2:" in eventually(lambda: daemon.call("status")["daemon"]["config_error"])
    assert daemon.server.groups["team"]["min"] == 0.2
    path.write_text(NATIVE.format(0.7))
    eventually(lambda: daemon.server.groups["team"]["min"] == 0.7)


def test_a_defect_in_reading_keeps_the_old_configuration(start_daemon, tmp_path, monkeypatch):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    real = files.reader_of
    monkeypatch.setattr(files, "reader_of", lambda _: lambda _: 1 // 0)
    path.write_text(NATIVE.format(0.3))
    assert "ZeroDivisionError" in eventually(lambda: daemon.call("status")["daemon"]["config_error"])
    assert daemon.server.groups["team"]["min"] == 0.2
    monkeypatch.setattr(files, "reader_of", real)
    path.write_text(NATIVE.format(0.7))
    eventually(lambda: daemon.server.groups["team"]["min"] == 0.7)


def test_an_unknown_user_leaves_the_limits_in_force_and_opens_nothing(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2) + 'users = ["²"]\n')
    daemon = start_daemon(config=str(path))
    assert daemon.server.groups["team"]["max"] == 0.9
    assert daemon.server.groups["team"]["users"] == [os.getuid()]  # an empty list would mean everybody


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "\0",
        '[{"spec": {"name": "a", "users": ["4294967296"]}, "owner": 0, "device": null}]',
        '[{"spec": {"name": "a", "users": ["a\\u0000b"]}, "owner": 0, "device": null}]',
        '[{"spec": {"name": "a", "min": 7}, "owner": 0, "device": null}]',
        '[{"spec": {"name": "a"}, "owner": 0, "device": null, "origin": "share", "socket": "a\\u0000b"}]',
        '[{"spec": {"name": "a", "memory": -1}, "owner": ' + "9" * 5000 + ', "device": null}]',
    ],
)
def test_no_content_of_the_state_ends_the_daemon(start_daemon, tmp_path, text):
    (tmp_path / "groups.json").write_text(text)
    daemon = start_daemon()
    assert daemon.call("ping")
    assert daemon.call("join", group="team")["group"] == "team"


def test_a_state_that_is_not_a_file_is_not_waited_for(start_daemon, tmp_path):
    os.mkfifo(tmp_path / "groups.json")
    assert start_daemon().call("ping")


def test_ipc_dir_removes_no_file(start_daemon, tmp_path):
    config, ipc = tmp_path / "resource.conf", tmp_path / "project"
    ipc.mkdir()
    (ipc / "results.csv").write_text("precious")
    config.write_text("[results.csv]\nMinUtil = 0.2\n[..]\nMinUtil = 0.1\n")
    daemon = start_daemon(config=str(config), ipc_dir=ipc)
    assert not any(str(ipc) in path for path in daemon.server.listening)
    daemon.stop()
    assert (ipc / "results.csv").read_text() == "precious"


def test_a_group_taken_out_of_the_file_goes(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2) + "[groups.other]\nmin = 0.1\n")
    daemon = start_daemon(config=str(path))
    path.write_text(NATIVE.format(0.2))
    eventually(lambda: set(daemon.server.groups) == {"team"})


def test_save(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    assert daemon.call("set", group="team", limits={"min": 0.5}, save=True)["saved"] == str(path)
    assert "0.5" in path.read_text()
    time.sleep(0.1)
    assert daemon.server.groups["team"]["min"] == 0.5


def test_save_without_a_file_is_refused_before_anything_changes(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team")
    with pytest.raises(Refused, match="without a configuration file"):
        daemon.call("set", group="team", limits={"min": 0.5}, save=True)
    assert daemon.server.groups["team"]["min"] == 0.0


def test_what_cannot_be_saved_is_refused_before_anything_changes(start_daemon, tmp_path):
    path = tmp_path / "resource.conf"
    path.write_text(KEYFILE.format(0.2))
    daemon = start_daemon(config=str(path))
    with pytest.raises(Refused, match="does not write"):
        daemon.call("set", group="team", limits={"min": 0.5}, save=True)
    assert daemon.server.groups["team"]["min"] == 0.2


def test_a_change_that_could_not_be_saved_is_reported_as_in_force(start_daemon, tmp_path, monkeypatch):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))

    def full(*_):
        raise ConfigError("cannot be saved: No space left on device", path=str(path))

    monkeypatch.setattr("gemlet.config.files.save", full)
    with pytest.raises(Refused, match=r"team is changed, but not saved: .*No space left"):
        daemon.call("set", group="team", limits={"max": 0.5}, save=True)
    assert daemon.server.groups["team"]["max"] == 0.5


def test_status_says_that_the_file_is_not_in_force(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    assert daemon.call("status")["daemon"]["config_error"] is None
    path.write_text(NATIVE.format(30))
    assert f"{path}:" in eventually(lambda: daemon.call("status")["daemon"]["config_error"])
    path.write_text(NATIVE.format(0.3))
    eventually(lambda: daemon.call("status")["daemon"]["config_error"] is None)


def test_a_file_that_is_wrong_is_not_saved_over(start_daemon, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    path.write_text(wrong := NATIVE.format(30))
    with pytest.raises(Refused, match="30 is more than 1"):
        daemon.call("set", group="team", limits={"max": 0.5}, save=True)
    assert path.read_text() == wrong
    assert groups(daemon)["team"]["max"] == 0.9


def test_a_file_that_comes_later_is_read_then(start_daemon, tmp_path):
    path = tmp_path / "not" / "yet" / "gemlet.toml"
    daemon = start_daemon(config=str(path), config_optional=True)
    assert daemon.call("status")["daemon"]["config"] is None
    path.parent.mkdir(parents=True)
    path.write_text(NATIVE.format(0.2))
    eventually(lambda: "team" in groups(daemon))
    assert daemon.call("status")["daemon"]["config"] == str(path)


def test_saving_makes_the_file_that_was_not_there(start_daemon, tmp_path):
    path = tmp_path / "not" / "yet" / "gemlet.toml"
    daemon = start_daemon(config=str(path), config_optional=True)
    group = daemon.call("join", command="train")["group"]
    assert daemon.call("set", group=group, limits={"max": 0.5}, save=True)["saved"] == str(path)
    assert f"[groups.{group}]" in path.read_text()


def test_ipc_dir_has_a_socket_per_configured_group(start_daemon, tmp_path):
    config, ipc = tmp_path / "resource.conf", tmp_path / "ipc"
    config.write_text(KEYFILE.format(0.2) + "[a/b]\nMinUtil = 0.1\n")
    daemon = start_daemon(config=str(config), ipc_dir=ipc)
    assert daemon.server.listening[str(ipc / "team")] == ("team", 0o600)
    config.write_text(KEYFILE.format(0.2) + "[late]\nMinUtil = 0.1\n")
    eventually((ipc / "late").is_socket)
    daemon.stop()
    assert list(ipc.iterdir()) == []


def test_ipc_dir_that_another_user_could_replace_has_no_sockets(start_daemon, tmp_path):
    config, outer = tmp_path / "resource.conf", tmp_path / "outer"
    config.write_text("[team]\nMinUtil = 0.1\n[space/pod]\nMinUtil = 0.1\n")
    outer.mkdir()
    outer.chmod(0o757)
    daemon = start_daemon(config=str(config), ipc_dir=outer / "ipc")
    assert not any(str(outer) in path for path in daemon.server.listening)
    assert list(outer.iterdir()) == []


def test_a_group_in_a_namespace_has_its_socket_in_a_directory(start_daemon, tmp_path):
    config, ipc = tmp_path / "resource.conf", tmp_path / "ipc"
    config.write_text("[space/pod]\nMinUtil = 0.1\n[../pod]\nMinUtil = 0.1\n")
    daemon = start_daemon(config=str(config), ipc_dir=ipc)
    assert daemon.server.listening[str(ipc / "space" / "pod")] == ("space/pod", 0o600)
    assert not (tmp_path / "pod").exists()
    daemon.stop()
    assert list(ipc.iterdir()) == []


def test_a_group_taken_out_of_the_file_loses_its_socket(start_daemon, tmp_path):
    config, ipc = tmp_path / "resource.conf", tmp_path / "ipc"
    config.write_text(KEYFILE.format(0.2) + "[late]\nMinUtil = 0.1\n")
    daemon = start_daemon(config=str(config), ipc_dir=ipc)
    assert (ipc / "late").is_socket()
    config.write_text(KEYFILE.format(0.2))
    eventually(lambda: not (ipc / "late").exists())
    assert str(ipc / "late") not in daemon.server.listening
    assert (ipc / "team").is_socket()
    config.write_text(KEYFILE.format(0.2) + "[late]\nMinUtil = 0.1\n")
    eventually((ipc / "late").is_socket)


# --- life --------------------------------------------------------------------------------------------------------


def test_a_second_daemon_is_told_the_pid_of_the_first(start_daemon, tmp_path):
    start_daemon()
    done = subprocess.run(
        [sys.executable, "-c", SECOND_DAEMON, str(tmp_path)], capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 3, done.stderr
    assert f"(pid {os.getpid()})" in done.stdout


SECOND_DAEMON = """
import sys, pathlib
from gemlet.daemon.address import Endpoint
from gemlet.daemon.lock import AlreadyRunning, DirectoryLock
try:
    DirectoryLock(Endpoint(pathlib.Path(sys.argv[1]), "user")).__enter__()
except AlreadyRunning as error:
    print(error)
    sys.exit(3)
"""


def test_stale_sockets_are_removed_but_no_files(start_daemon, tmp_path):
    import socket

    for name in ("api.sock", "gemlet.sock"):
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stale.bind(str(tmp_path / name))
        stale.close()
    with pytest.raises(DaemonUnreachable):
        Connection(address.Endpoint(tmp_path, "user"))
    assert start_daemon().call("ping")


def test_groups_survive_a_restart(start_daemon, tmp_path):
    first = start_daemon()
    first.call("join", group="team", limits={"min": 0.3, "memory": 1 << 30})
    first.stop()
    second = start_daemon()
    assert second.server.groups["team"]["min"] == 0.3
    assert second.server.groups["team"]["memory"] == 1 << 30
    assert groups(second)["team"]["owner"] == os.getuid()


def test_a_damaged_state_file_does_not_matter(start_daemon, tmp_path):
    (tmp_path / "groups.json").write_bytes(b'[{"spec": \xff')
    assert start_daemon().call("ping")


def test_idle_exit(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon(idle_exit=0.2)
    daemon.thread.join(60)
    assert not daemon.thread.is_alive()


def test_no_idle_exit_while_a_launcher_lives(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon(idle_exit=0.2)
    daemon.call("join", group="team")  # the launcher is this process
    time.sleep(0.5)
    assert daemon.call("ping")


def test_a_group_goes_after_its_launcher(start_daemon, monkeypatch, tmp_path):
    monkeypatch.setattr("gemlet.daemon.service.HOUSEKEEPING_SECONDS", 0.02)
    daemon = start_daemon()
    script = (
        "import sys, pathlib;"
        "from gemlet.daemon.address import Endpoint; from gemlet.daemon.connection import Connection;"
        "Connection(Endpoint(pathlib.Path(sys.argv[1]), 'user')).call('join', group='team')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=20)
    assert "team" in groups(daemon)
    daemon.service.book.entries["team"].linger = 0.1
    eventually(lambda: "team" not in groups(daemon))


def test_log_tail(tmp_path, monkeypatch):
    log = tmp_path / "daemon.log"
    assert "cannot be read" in log_tail(log)
    log.write_text("")
    assert "is empty" in log_tail(log)
    with monkeypatch.context() as changed:
        changed.setattr(autostart.os, "statvfs", lambda _: SimpleNamespace(f_blocks=1, f_bavail=0))
        assert "full disk" in log_tail(log)
    log.write_text("\n".join(f"line {n}" for n in range(20)))
    assert "line 19" in log_tail(log)
    assert "line 3" not in log_tail(log)


def test_a_share_has_a_socket_of_its_own_until_it_is_removed(start_daemon, tmp_path):
    daemon = start_daemon()
    socket = tmp_path / "pod" / "gemlet.sock"
    socket.parent.mkdir()
    answer = daemon.call("share", group="default/a", limits={"min": 0.25, "max": 0.5}, socket=str(socket))
    assert answer["granted"]["max"] == 0.5
    assert daemon.server.listening[str(socket)] == ("default/a", 0o666)
    daemon.call("share", group="default/a", limits={"min": 0.25}, socket=str(socket))
    assert daemon.server.groups["default/a"]["max"] == 1.0, "what is left out is the default, not what it was"
    daemon.call("remove", group="default/a")
    assert not socket.exists()
    assert daemon.server.groups == {}


def test_shares_are_not_summed_up_with_each_other(start_daemon, tmp_path):
    daemon = start_daemon()
    for name in ("a", "b"):
        daemon.call("share", group=name, limits={"min": 0.75}, socket=str(tmp_path / name))
    assert set(daemon.server.groups) == {"a", "b"}


def test_a_share_that_cannot_listen_is_not_there(start_daemon, tmp_path):
    daemon = start_daemon()
    with pytest.raises(Refused, match="cannot listen"):
        daemon.call("share", group="a", limits={}, socket=str(tmp_path / "no such directory" / "s"))
    assert daemon.server.groups == {}


def test_a_restarted_daemon_opens_its_shares_again(start_daemon, tmp_path):
    daemon = start_daemon()
    daemon.call("share", group="a", limits={"min": 0.5, "memory": 4096}, socket=str(tmp_path / "a.sock"))
    daemon.stop()
    (tmp_path / "a.sock").unlink(missing_ok=True)
    again = start_daemon()
    assert again.server.listening[str(tmp_path / "a.sock")] == ("a", 0o666)
    assert again.server.groups["a"]["memory"] == 4096


def test_a_share_does_not_take_another_group_over(start_daemon, tmp_path):
    daemon = start_daemon()
    daemon.call("join", group="a", command="x", limits={})
    with pytest.raises(Refused, match="already"):
        daemon.call("share", group="a", limits={}, socket=str(tmp_path / "a.sock"))


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
