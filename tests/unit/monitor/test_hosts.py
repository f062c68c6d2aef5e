"""Many hosts for one page: a hundred that are played, some that do not answer, and ssh, played, too."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gemlet.errors import InvalidValue
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
