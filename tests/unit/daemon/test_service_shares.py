"""The daemon as a whole, with a fake server: shares that have sockets of their own."""

from __future__ import annotations

import asyncio
import errno

import msgspec
import pytest

from gemlet.devices.device import uuid_bytes
from gemlet.errors import Refused
from gemlet.kube.daemon_link import DaemonLink, terms
from gemlet.kube.request import Amounts
from gemlet.kube.share import Share
from gemlet.model import Priority

GPU = "GPU-11111111-2222-3333-4444-555555555555"


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


def test_a_share_is_bound_to_its_devices_also_by_the_next_daemon(start_daemon, tmp_path):
    daemon, path = start_daemon(), str(tmp_path / "a.sock")
    with pytest.raises(Refused, match="'GPU-1' is not the UUID"):
        daemon.call("share", group="a", limits={}, socket=path, devices=["GPU-1"])
    daemon.call("share", group="a", limits={}, socket=path, devices=[GPU])
    assert daemon.server.bound["a"] == [uuid_bytes(GPU)]
    daemon.call("set", group="a", limits={"max": 0.5})
    daemon.stop()
    (tmp_path / "a.sock").unlink(missing_ok=True)
    again = start_daemon()
    assert again.server.bound["a"] == [uuid_bytes(GPU)]
    again.call("share", group="a", limits={}, socket=path)
    assert again.server.bound["a"] == []


def test_a_share_does_not_take_another_group_over(start_daemon, tmp_path):
    daemon = start_daemon()
    daemon.call("join", group="a", command="x", limits={})
    with pytest.raises(Refused, match="already"):
        daemon.call("share", group="a", limits={}, socket=str(tmp_path / "a.sock"))


def test_a_share_that_the_next_daemon_would_not_know_is_refused(start_daemon, tmp_path, monkeypatch):
    daemon, path = start_daemon(), str(tmp_path / "a.sock")
    with monkeypatch.context() as disk:
        disk.setattr("gemlet.whole_file.write", _full)
        with pytest.raises(Refused, match="No space left"):
            daemon.call("share", group="a", limits={"memory": 4096}, socket=path)
    assert daemon.server.groups == {}
    assert not (tmp_path / "a.sock").exists()
    daemon.call("share", group="a", limits={"memory": 4096}, socket=path)
    assert "a" in daemon.endpoint.state.read_text()


def test_a_change_of_a_share_that_cannot_be_written_is_refused(start_daemon, tmp_path, monkeypatch):
    daemon, path = start_daemon(), str(tmp_path / "a.sock")
    daemon.call("share", group="a", limits={"memory": 8192}, socket=path)
    with monkeypatch.context() as disk:
        disk.setattr("gemlet.whole_file.write", _full)
        with pytest.raises(Refused, match="No space left"):
            daemon.call("share", group="a", limits={"memory": 4096}, socket=path)
        assert daemon.server.groups["a"]["memory"] == 8192, "what is in force is what the next daemon will have"
        daemon.call("share", group="a", limits={"memory": 8192}, socket=path)
    daemon.stop()
    (tmp_path / "a.sock").unlink(missing_ok=True)
    assert start_daemon().server.groups["a"]["memory"] == 8192


def test_what_a_share_is_promised_is_said_as_it_was_told(start_daemon, tmp_path):
    """By any difference the agent of a node would tell it again, every two seconds."""
    daemon = start_daemon()
    link = DaemonLink(daemon.endpoint)
    for number, compute in enumerate((1, 29, 57, 100)):
        amounts = Amounts(memory=(1 << 40) + 1, compute=compute, limit=100, priority=Priority.LATENCY, resident=1 << 30)
        share = Share(id="s", group=f"default/{number}", gpus=(GPU,), granted=amounts, amounts=amounts)
        for each, device in ((share, None), (msgspec.structs.replace(share, amounts=Amounts(**_plain(compute))), 0)):
            asyncio.run(link.open(each, str(tmp_path / f"{number}.sock"), device=device))
            assert asyncio.run(link.shares())[share.group] == terms(each, device)
    nothing = Amounts(memory=0, compute=0, limit=1)  # of units before the kubelet knows their container
    units = Share(id="u", group="units-1", gpus=(GPU,), granted=nothing, amounts=nothing)
    asyncio.run(link.open(units, str(tmp_path / "u.sock"), device=0))
    assert asyncio.run(link.shares())["units-1"] == terms(units, 0)
    daemon.call("set", group="default/1", limits={"max": 0.9})
    assert asyncio.run(link.shares())["default/1"].max == 0.9


def _plain(compute):
    return {"memory": 256 << 20, "compute": compute, "limit": compute}


def _full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")
