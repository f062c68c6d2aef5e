"""`gemlet web`, and the page that a daemon starts by its configuration."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest

from tests.waiting import eventually


def ask(link, path, body=None):
    address, _, token = link.partition("/#")
    request = urllib.request.Request(
        address + path,
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def refuses(link):
    try:
        ask(link, "/api/status")
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return True
    return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_daemon_starts_its_page_and_takes_it_along(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text(f'[daemon]\nweb = "127.0.0.1:{free_port()}"\n[groups.team]\nmin = 0.25\n')
    daemon = gemlet.start("daemon", "--simulate", "--config", str(config))
    file = gemlet.directory / "sim" / "web.link"
    eventually(lambda: file.exists() and file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    link = file.read_text().strip()
    eventually(lambda: not refuses(link))
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    assert gemlet("web", "--simulate", "--link").stdout.strip() == link
    answer = ask(link, "/api/status")
    assert not answer["write"]
    assert [group["name"] for group in answer["status"]["groups"]] == ["team"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(link, "/api/set", {"group": "team", "limits": {"min": 0.5}})
    with refused.value:  # it is an answer on an open connection, too
        assert refused.value.code == 409
    daemon.kill()  # it cannot tell its page
    daemon.wait()
    eventually(lambda: refuses(link))


def test_a_page_that_may_change_limits(gemlet):
    gemlet.start("daemon", "--simulate", "--no-config")
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    gemlet("run", "--simulate", "--group", "team", "--", "true")
    page = gemlet.start("web", "--simulate", "--write", "--listen", "127.0.0.1:0")
    link = page.stdout.readline().strip()
    ask(link, "/api/set", {"group": "team", "limits": {"max": 0.5, "memory": 2**31}})
    ask(link, "/api/set", {"group": "team", "limits": {"memory": "none"}})
    [team] = ask(link, "/api/status")["status"]["groups"]
    assert (team["max"], team["memory"]) == (0.5, None)


def test_an_address_that_others_reach(gemlet):
    refused = gemlet("web", "--listen", "0.0.0.0:8080")
    assert refused.returncode != 0
    assert "hint: use `ssh -L" in refused.stderr
