"""An upgrade while a daemon runs: the daemon that answers is of another version."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from gemlet.cli import main
from gemlet.cli.env import failing
from gemlet.cli.environment import check_version
from gemlet.membership import WIRE_VERSION

GRANTED = {"min": 0.0, "max": 1.0, "memory": None, "resident": None, "sm": 1.0, "priority": "normal"}


@pytest.fixture
def daemon_that_answers(tmp_path, monkeypatch):
    """Starts the API of a daemon that knows one answer to everything."""
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "api.sock"))
    listener.listen()
    threads = []

    def start(data):
        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as stream:
                    for _ in stream:
                        stream.write(json.dumps({"ok": True, "data": data}).encode() + b"\n")
                        stream.flush()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)


def answer(**changes):
    known = {"group": "true-1", "socket": "/nowhere", "simulated": False, "machine": None, "granted": GRANTED}
    return known | {"environment": {}, "sm_in_force": True, "groups": []} | changes


@pytest.mark.parametrize("verb", [["run", "--", "true"], ["env"]])
@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ({}, ("an older version", "`gemlet stop`")),
        ({"wire": WIRE_VERSION - 1}, ("an older version", "`gemlet stop`")),
        (
            {"wire": WIRE_VERSION - 1, "wire_oldest": WIRE_VERSION - 2},
            ("an older version", "`gemlet daemon --take-over`"),
        ),
        ({"wire": WIRE_VERSION + 1}, ("a newer version", "`gemlet status`")),
        ({"wire": WIRE_VERSION + 2, "wire_oldest": WIRE_VERSION + 1}, ("a newer version", "`gemlet status`")),
    ],
)
def test_no_program_is_started_under_a_daemon_it_cannot_speak_with(daemon_that_answers, capsys, verb, wire, words):
    daemon_that_answers(answer(**wire))
    assert main.run(verb) == 125
    out, err = capsys.readouterr()
    assert out == ("" if verb[0] == "run" else f"{failing('shell')}\n")
    assert err.startswith(f"error: the daemon is of {words[0]} of gemlet")
    assert words[1] in err


@pytest.mark.parametrize("oldest", [WIRE_VERSION - 1, WIRE_VERSION])
def test_a_daemon_that_serves_this_versions_hook_will_do(oldest):
    check_version(answer(wire=oldest + 1, wire_oldest=oldest), simulated=False)


@pytest.mark.parametrize("verb", [["status"], ["top", "--once"], ["explain", "a"], ["mps", "status"]])
def test_what_cannot_be_read_is_an_error_with_a_hint(daemon_that_answers, capsys, verb):
    daemon_that_answers({"schema": 0})
    assert main.run(verb) == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the daemon's ")
    assert "`gemlet stop`" in err
