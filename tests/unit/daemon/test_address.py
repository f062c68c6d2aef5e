from __future__ import annotations

import contextlib
import os
import socket

import pytest

from gemlet.daemon import address, protocol
from gemlet.daemon.connection import Connection, no_daemon
from gemlet.daemon.group_entry import Senseless, no_group
from gemlet.daemon.requests import Join, decode
from gemlet.errors import DaemonError, Refused


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path / "rt"))
    return tmp_path / "rt"


def test_the_systems_daemon_before_ones_own(runtime):
    assert [e.kind for e in address.candidates()] == ["system", "user"]
    assert address.candidates()[1].directory == runtime


def test_a_named_one_is_the_only_one(tmp_path):
    for named in (tmp_path, tmp_path / "gemlet.sock", tmp_path / "api.sock"):
        (endpoint,) = address.candidates(str(named))
        assert endpoint.directory == tmp_path
        assert endpoint.kind == "explicit"


def test_simulated_has_a_directory_of_its_own(runtime):
    (endpoint,) = address.candidates(simulate=True)
    assert endpoint.directory == runtime / "sim"
    assert endpoint.machine.parent == endpoint.directory


def test_inside_a_simulated_program_everything_is_simulated(tmp_path):
    (tmp_path / "machine").mkdir()
    (endpoint,) = address.candidates(str(tmp_path / "gemlet.sock"))
    assert endpoint.kind == "simulated"


def test_simulate_inside_a_real_program_leaves_its_daemon_alone(tmp_path, runtime):
    (endpoint,) = address.candidates(str(tmp_path / "gemlet.sock"), simulate=True)
    assert endpoint.directory == runtime / "sim"


def test_request_and_reply():
    assert protocol.encode_request("ping", {"a": 1}) == b'{"v":1,"op":"ping","a":1}\n'
    words = [os.fsdecode(b"na\xefve"), "café", "\x1b\n", "\U0001f600"]  # the first as Python has what is no UTF-8
    line = protocol.encode_request("join", {"arguments": words, "command": words[0]})
    assert line.count(b"\n") == 1
    asked = decode(line)
    assert isinstance(asked, Join)
    assert asked.arguments == ["na?ve", *words[1:]]
    assert asked.command == "na?ve"
    assert protocol.decode_reply(b'{"ok":true,"data":[1]}\n') == [1]
    with pytest.raises(Refused) as refusal:
        protocol.decode_reply(b'{"ok":false,"error":{"message":"no","hint":"do"}}\n')
    assert (refusal.value.message, refusal.value.hint) == ("no", "do")


@pytest.mark.parametrize("line", [b"", b"x\n", b"[]\n", b"null\n", b'{"ok":false}\n', b'{"ok":false,"error":3}\n'])
def test_a_reply_that_makes_no_sense(line):
    with pytest.raises(DaemonError, match="makes no sense"):
        protocol.decode_reply(line)


def test_a_directory_that_is_not_there_is_named_as_it_was_given(tmp_path):
    (endpoint,) = address.candidates(str(tmp_path / "none"))
    assert endpoint.directory == tmp_path / "none"


def test_a_forgotten_simulate_is_hinted_at(runtime):
    simulated = address.simulated()
    simulated.directory.mkdir(parents=True)
    assert "add --simulate" not in str(no_daemon(address.user()).hint)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(simulated.api))
        listener.listen()
        assert "add --simulate" in str(no_daemon(address.user()).hint)


def test_a_forgotten_simulate_is_hinted_at_where_a_daemon_refuses(runtime):
    simulated = address.simulated()
    simulated.directory.mkdir(parents=True)
    with contextlib.ExitStack() as listeners:
        for endpoint in (address.user(), simulated):
            listener = listeners.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(endpoint.api))
            listener.listen()

        def hint(endpoint: address.Endpoint, error: Refused) -> str | None:
            with pytest.raises(Refused) as refusal, Connection(endpoint):
                raise error
            return refusal.value.hint

        unknown = hint(address.user(), no_group("try", []))
        assert unknown is not None
        assert unknown.endswith("; or add --simulate: the daemon of the simulated machine runs")
        assert "--simulate" not in str(hint(simulated, no_group("try", [])))
        assert hint(address.user(), Senseless("min is above max", hint="choose")) == "choose"


def test_a_named_daemon_is_not_one_that_run_starts(tmp_path):
    (endpoint,) = address.candidates(str(tmp_path))
    assert "gemlet run" not in str(no_daemon(endpoint).hint)


def test_the_directory_of_a_named_daemon_is_quoted_for_a_shell(tmp_path):
    (endpoint,) = address.candidates(str(tmp_path / "a b;rm"))
    assert f"`gemlet daemon --runtime-dir '{tmp_path}/a b;rm'`" in str(no_daemon(endpoint).hint)
