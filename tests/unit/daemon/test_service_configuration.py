"""The daemon as a whole, with a fake server: configuration that comes, changes, is wrong, and is saved."""

from __future__ import annotations

import asyncio
import errno
import os
import time

import pytest

from gemlet.config import files
from gemlet.errors import ConfigError, Refused
from tests.waiting import eventually

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


class Unseen:
    """Changes of a file that nobody has seen so far, as those that another machine makes."""

    def __init__(self, path):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.Event().wait()


def test_saving_keeps_what_was_edited_since_the_file_was_read(start_daemon, tmp_path, monkeypatch):
    monkeypatch.setattr("gemlet.config.watch.changes", Unseen)
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))
    path.write_text(NATIVE.format(0.2) + "[groups.edited]\nmax = 0.3\n[users.ana]\ngroups = 4\n")
    daemon.call("set", group="team", limits={"min": 0.5}, save=True)
    saved = files.load(path)
    assert {group.name: (group.min, group.max) for group in saved.groups}["team"][0] == 0.5
    assert {group.name: group.max for group in saved.groups}["edited"] == 0.3
    assert [(user.name, user.groups) for user in saved.users] == [("ana", 4)]


def test_what_is_saved_is_written_down_though_the_daemons_directory_is_full(start_daemon, tmp_path, monkeypatch):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    daemon = start_daemon(config=str(path))

    def write(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gemlet.whole_file.write", write)
    lost, kept = (daemon.call("set", group="team", limits={"min": 0.5}, save=save) for save in (False, True))
    assert "not written down" in lost["warnings"][0]["message"]
    assert not kept["warnings"]


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
    assert daemon.groups()["team"]["max"] == 0.9


def test_a_file_that_comes_later_is_read_then(start_daemon, tmp_path):
    path = tmp_path / "not" / "yet" / "gemlet.toml"
    daemon = start_daemon(config=str(path), config_optional=True)
    assert daemon.call("status")["daemon"]["config"] is None
    path.parent.mkdir(parents=True)
    path.write_text(NATIVE.format(0.2))
    eventually(lambda: "team" in daemon.groups())
    assert daemon.call("status")["daemon"]["config"] == str(path)


def test_saving_makes_the_file_that_was_not_there(start_daemon, tmp_path):
    path = tmp_path / "not" / "yet" / "gemlet.toml"
    daemon = start_daemon(config=str(path), config_optional=True)
    group = daemon.call("join", command="train")["group"]
    assert daemon.call("set", group=group, limits={"max": 0.5}, save=True)["saved"] == str(path)
    assert f"[groups.{group}]" in path.read_text()
    saved = daemon.groups()[group]
    assert (saved["origin"], saved["owner"]) == ("configuration", None)  # as the next daemon will have it


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
