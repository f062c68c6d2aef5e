"""Many hosts for one page: a hundred that are played, some that do not answer, and ssh, played, too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from gemlet.errors import InvalidValue
from gemlet.monitor.web import hosts as hosts_module
from gemlet.monitor.web.hosts import Hosts, HostSpec, parse_hosts
from gemlet.monitor.web.questions import Questions
from tests.played_hosts import SILENT, played
from tests.waiting import eventually

SSH = """#!/bin/sh
for word; do case "$word" in -L*) forward="${word#-L}";; esac; done
for word; do last="$word"; done
case "$last" in gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255;; esac
ln -s "${forward#*:}" "${forward%%:*}"
exec sleep 600
"""


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="gemlet-hosts-") as made:  # short: a socket's path has 107 bytes
        yield Path(made)


@pytest.fixture
def hosts():
    made = []

    def start(specs):
        made.append(Hosts(specs))
        return made[-1]

    yield start
    for each in made:
        each.close()


def rows(hosts):
    return {row["name"]: row for row in hosts.overview()["hosts"]}


def test_what_is_a_list_of_hosts():
    assert parse_hosts("a, b:/srv/gemlet,c=/tmp/c") == [
        HostSpec("a", "/run/gemlet"),
        HostSpec("b", "/srv/gemlet"),
        HostSpec("c", "/tmp/c", local=True),
    ]


@pytest.mark.parametrize("text", ["", ",", "a,a", "-oProxyCommand=x", "-x", "a:relative", "=/tmp", "a=b"])
def test_what_is_none(text):
    with pytest.raises(InvalidValue, match="is no list of hosts"):
        parse_hosts(text)


def test_a_hundred_hosts_and_some_that_do_not_answer(folder, hosts):
    names = [f"h{number}" for number in range(97)] + [f"{SILENT}-{number}" for number in range(2)]
    with played(folder, names) as daemons:
        found = hosts([HostSpec(name, str(folder / name), local=True) for name in [*names, "absent"]])
        assert list(rows(found)) == [*names, "absent"]
        eventually(lambda: sum(row["error"] is None for row in rows(found).values()) == 97)
        eventually(lambda: all(row["error"] != "not asked so far" for row in rows(found).values()))
        seen = rows(found)
        assert seen["h42"]["devices"][0]["busy"] == 0.42
        assert (seen["h42"]["groups"], seen["h42"]["programs"], seen["h42"]["waiting"]) == (1, 1, 0)
        for name in (*names[97:], "absent"):
            assert seen[name]["error"]
            assert seen[name]["seen"] is None
            assert "devices" not in seen[name]
        assert {op for asked in daemons.asked.values() for op in asked} == {"status"}


def test_a_host_that_stops_answering_keeps_what_it_said_last(folder, hosts):
    with played(folder, ["a"]):
        found = hosts([HostSpec("a", str(folder / "a"), local=True)])
        eventually(lambda: rows(found)["a"]["error"] is None)
        (folder / "a/api.sock").unlink()
        eventually(lambda: rows(found)["a"]["error"])
        assert rows(found)["a"]["groups"] == 1
        assert rows(found)["a"]["seen"]


def test_over_ssh(folder, hosts, monkeypatch):
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(SSH)
    (folder / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with played(folder, ["far"]):
        found = hosts([HostSpec("far", str(folder / "far")), HostSpec("gone", "/run/gemlet")])
        eventually(lambda: rows(found)["far"]["error"] is None)
        eventually(lambda: rows(found)["gone"]["error"] == "ssh: ssh: connect to host gone port 22: No route to host")
        tunnel = found._hosts["far"].tunnel
        assert tunnel is not None
        found.close()
        assert tunnel.wait(60) != 0


def test_the_page_asks_hosts_and_changes_nothing(folder, hosts):
    with played(folder, ["a"]) as daemons:
        found = hosts([HostSpec("a", str(folder / "a"), local=True)])
        questions = Questions([], write=True, hosts=found)
        assert questions.get("/api/page", {}) == {"write": False, "hosts": True, "serving": False}
        assert questions.get("/api/status", {"host": "a"})["write"] is False
        assert [row["name"] for row in questions.get("/api/hosts", {})["hosts"]] == ["a"]
        for query in ({}, {"host": "b"}):
            with pytest.raises(KeyError):
                questions.get("/api/status", query)
        for path in ("/api/set", "/api/preview"):
            with pytest.raises(KeyError):
                questions.post(path, b"{}")
        assert "set" not in daemons.asked["a"]


def test_without_hosts_there_is_no_overview():
    questions = Questions([], write=True)
    assert questions.get("/api/page", {}) == {"write": True, "hosts": False, "serving": False}
    for path in ("/api/hosts", "/api/models"):
        with pytest.raises(KeyError):
            questions.get(path, {})


CHATTY = """#!/bin/sh
for word; do case "$word" in -L*) forward="${word#-L}";; esac; done
i=0; while [ $i -lt 4000 ]; do echo "channel 2: open failed: connect failed: open failed" >&2; i=$((i+1)); done
ln -s "${forward#*:}" "${forward%%:*}"
exec sleep 600
"""

STAYS = """#!/bin/sh
sleep 600 &
echo $! > "$0.pid"
echo "kex_exchange_identification: Connection closed by remote host" >&2
exit 255
"""


def play_ssh(folder, monkeypatch, program):
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(program)
    (folder / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("gemlet.monitor.web.hosts.EVERY", 0.1)
    monkeypatch.setattr("gemlet.monitor.web.hosts.PATIENCE", 0.2)


def test_an_ssh_that_says_much_still_carries(folder, hosts, monkeypatch):
    """It says a line for each question that a host's daemon is not there to answer."""
    play_ssh(folder, monkeypatch, CHATTY)
    with played(folder, ["far"]):
        found = hosts([HostSpec("far", str(folder / "far"))])
        assert eventually(lambda: rows(found)["far"]["error"] is None)


def test_what_an_ssh_leaves_running_holds_nobody_up(folder, hosts, monkeypatch):
    """A connection that is shared with others (ControlPersist) keeps the end of stderr."""
    play_ssh(folder, monkeypatch, STAYS)
    found = hosts([HostSpec("far", "/run/gemlet")])
    try:
        said = "ssh: kex_exchange_identification: Connection closed by remote host"
        assert eventually(lambda: rows(found)["far"]["error"] == said)
        found.close()
    finally:
        os.kill(int((folder / "bin/ssh.pid").read_text()), signal.SIGKILL)


def test_a_tunnel_that_is_just_begun_ends_with_the_others(folder, hosts, monkeypatch):
    """On a busy machine an ssh runs before it is known that it does."""
    play_ssh(folder, monkeypatch, SSH)
    begun, started = [], threading.Event()

    def start_slowly(command):
        begun.append(begin(command))
        started.set()
        time.sleep(0.3)
        return begun[0]

    begin = hosts_module._start
    monkeypatch.setattr(hosts_module, "_start", start_slowly)
    found = hosts([HostSpec("far", "/run/gemlet")])
    found.overview()
    assert started.wait(60)
    found.close()
    assert begun[0].poll() is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_signal_leaves_tunnels_behind(folder, monkeypatch, number):
    play_ssh(folder, monkeypatch, SSH.replace("exec sleep", 'echo $$ > "$0.pid"; exec sleep'))
    words = [sys.executable, "-m", "gemlet", "web", "--listen", "127.0.0.1:0", "--hosts", "far:/run/gemlet"]
    pid = folder / "bin/ssh.pid"
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(folder)}) as page:
        try:
            assert page.stdout is not None
            address, _, token = page.stdout.readline().strip().partition("/#")
            question = urllib.request.Request(f"{address}/api/hosts", headers={"Authorization": f"Bearer {token}"})
            urllib.request.urlopen(question, timeout=60).close()
            eventually(lambda: pid.exists() and pid.read_text().strip())
            tunnel = os.pidfd_open(int(pid.read_text()))
            page.send_signal(number)
            assert page.wait(60) == {signal.SIGINT: 130}.get(number, 128 + number)
            assert select.select([tunnel], [], [], 60)[0], "its ssh goes on"
            assert not list(folder.glob("gemlet-web-*"))
        finally:
            page.kill()
            if pid.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGKILL)
