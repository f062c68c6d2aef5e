"""Any line to the API gets one answer, none of which is a defect, and the daemon answers the next."""

from __future__ import annotations

import json
import os
import socket

from tests import fuzzing

DEFECT = "this is a defect"


def test_any_line(start_daemon, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text("[groups.team]\nmin = 0.1\n")
    daemon = start_daemon(config=str(config))
    connection = answers = None
    for data in fuzzing.inputs("api"):
        line = data.replace(b"\n", b" ") + b"\n"
        if b"shutdown" in line or b"start" in line or len(line) > 60_000:  # what ends the daemon, or runs a program
            continue
        if connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(60)
            connection.connect(str(daemon.endpoint.api))
            answers = connection.makefile("rb")
        connection.sendall(line)
        answer = answers.readline()
        assert answer.endswith(b"\n"), (fuzzing.SEED, line)
        reply = json.loads(answer)
        assert reply["ok"] or DEFECT not in reply["error"]["message"], (fuzzing.SEED, line)
    connection.close()
    answers.close()
    assert daemon.call("ping")["pid"] == os.getpid()


def test_any_state(start_daemon, tmp_path):
    from gemlet.daemon import saved_groups
    from gemlet.daemon.state_file import StateFile

    path = tmp_path / "groups.json"
    for data in fuzzing.inputs("configuration"):
        path.write_bytes(data)
        assert saved_groups.load(StateFile(path)) == [], (fuzzing.SEED, data)
