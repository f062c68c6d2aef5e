"""The agent's questions to a daemon that is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from gemlet.daemon.address import Endpoint
from gemlet.errors import DaemonError, DaemonUnreachable, Refused
from gemlet.kube.daemon_link import DaemonLink
from tests.unit.kube import fakes

LOG = "log of the container daemon"


@pytest.fixture
def endpoint(tmp_path):
    return Endpoint(tmp_path, "explicit")


@contextlib.asynccontextmanager
async def daemon(endpoint, answer, asked=None):
    """Answers each line with ``answer``: bytes, None to hang up, or ... to say nothing."""

    async def talk(reader, writer):
        line = await reader.readline()
        if asked is not None:
            asked.append(json.loads(line))
        if answer is ...:
            await reader.read()
        elif answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(talk, endpoint.api)
    try:
        yield DaemonLink(endpoint, seconds=0.3)
    finally:
        server.close()


def test_a_share_is_a_group_with_a_socket(endpoint, run):
    asked = []

    async def scenario():
        async with daemon(endpoint, b'{"ok": true, "data": {}}\n', asked) as link:
            await link.open(fakes.claim_share("u1"), "/s/gemlet.sock", device=1)

    run(scenario())
    (request,) = asked
    assert (request["op"], request["group"], request["socket"], request["device"]) == (
        "share",
        "default/u1",
        "/s/gemlet.sock",
        1,
    )
    assert request["limits"] == {
        "min": 0.25,
        "max": 0.25,
        "memory": 16 * fakes.GIB,
        "resident": "none",
        "priority": "normal",
    }


def test_no_daemon_is_an_error_with_a_hint_for_readers_of_events(endpoint, run):
    with pytest.raises(DaemonUnreachable, match=r"no daemon at .*api.sock$") as caught:
        run(DaemonLink(endpoint).status())
    assert LOG in caught.value.hint
    endpoint.api.write_text("")  # a file where nobody listens
    with pytest.raises(DaemonUnreachable, match="Connection refused"):
        run(DaemonLink(endpoint).status())


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (..., DaemonUnreachable, "does not answer$"),
        (None, DaemonError, "closed the connection"),
        (b'{"ok": tr', DaemonError, "closed the connection"),
        (b"nonsense\n", DaemonError, "makes no sense"),
    ],
)
def test_an_answer_that_is_none_is_an_error(endpoint, run, answer, kind, text):
    async def scenario():
        async with daemon(endpoint, answer) as link:
            await link.status()

    with pytest.raises(DaemonError, match=text) as caught:
        run(scenario())
    assert type(caught.value) is kind
    assert caught.value.hint


def test_a_group_that_is_gone_is_removed_and_one_in_use_is_not(endpoint, run):
    async def remove(groups):
        async def talk(reader, writer):
            if json.loads(await reader.readline())["op"] == "status":
                data = {"groups": [{"name": name, "origin": "share"} for name in groups]}
                writer.write(json.dumps({"ok": True, "data": data}).encode() + b"\n")
            else:
                writer.write(b'{"ok": false, "error": {"message": "group g has clients"}}\n')
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        server = await asyncio.start_unix_server(talk, endpoint.api)
        try:
            await DaemonLink(endpoint).remove("g")
        finally:
            server.close()
            endpoint.api.unlink()

    run(remove(["other"]))
    with pytest.raises(Refused, match="has clients"):
        run(remove(["g"]))
