"""Who may ask. The file of the tokens may change while the server runs, into anything."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from gemlet.errors import ConfigError
from gemlet.serve.server.frontend.access import Tokens
from gemlet.serve.server.frontend.http_server import HttpServer
from tests.unit.serve.server.frontend.test_http import post, talk
from tests.unit.serve.stand_in import Service, connect

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_takes_the_place_of_the_file_is_not_waited_for(file, kind, caplog):
    tokens = Tokens(file)
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file, 0o600)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    for _ in range(3):
        tokens.refresh()
    assert tokens.of(f"Bearer {TOKEN}".encode())
    assert caplog.text.count("the tokens are as they were") == 1


@pytest.mark.parametrize("text", ["", "\n \n", "# none for now\n"])
def test_a_file_that_is_emptied_lets_nobody_in(file, text, caplog):
    tokens = Tokens(file)
    digest = tokens.of(f"Bearer {TOKEN}".encode())
    assert digest
    file.write_text(text)
    assert tokens.refresh()
    assert not tokens.of(f"Bearer {TOKEN}".encode())
    assert not tokens.of(b"Bearer ")
    assert not tokens.knows(digest)
    assert "0 tokens" in caplog.text
    file.write_text(TOKEN + "\n")
    tokens.refresh()
    assert tokens.of(f"Bearer {TOKEN}".encode())


@pytest.mark.parametrize("change", ["removed", "short", "readable by others"])
def test_a_file_that_is_not_valid_leaves_the_tokens_as_they_were(file, change, caplog):
    tokens = Tokens(file)
    if change == "removed":
        file.unlink()
    elif change == "short":
        file.write_text("short")
    else:
        file.write_text("another-token-that-nobody-guesses")
        file.chmod(0o644)
    assert not tokens.refresh()
    assert tokens.of(f"Bearer {TOKEN}".encode())
    assert "the tokens are as they were" in caplog.text


def test_a_token_goes_with_the_file_whatever_times_that_has(file):
    """Tokens are of one length, and a copy may bring its times along; a file written twice in a moment has them too."""
    tokens, had = Tokens(file), file.stat()
    digest = tokens.of(f"Bearer {TOKEN}".encode())
    file.write_text(TOKEN[::-1])
    os.utime(file, ns=(had.st_atime_ns, had.st_mtime_ns))
    assert tokens.refresh()
    assert not tokens.knows(digest)
    assert tokens.of(f"Bearer {TOKEN[::-1]}".encode())


def test_a_file_that_others_may_read_from_now_on_is_told_once(file, caplog):
    tokens = Tokens(file)
    file.chmod(0o644)
    for _ in range(3):
        assert not tokens.refresh()
    assert caplog.text.count("other users may read the tokens") == 1
    file.chmod(0o600)
    caplog.clear()
    tokens.refresh()
    assert not caplog.text


def test_a_file_without_tokens_is_an_error_at_the_start(file):
    file.write_text("")
    with pytest.raises(ConfigError, match="expected tokens"):
        Tokens(file)


def test_the_tokens_may_come_from_a_pipe_at_first():
    read, write = os.pipe()
    os.write(write, TOKEN.encode())
    os.close(write)
    os.fchmod(read, 0o600)
    tokens = Tokens(Path(f"/proc/self/fd/{read}"))
    tokens.refresh()
    assert tokens.of(f"Bearer {TOKEN}".encode())
    os.close(read)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 200),
        (("Origin: http://localhost:3000",), 200),
        (("Origin: http://127.0.0.1:8000",), 200),
        (("Origin: http://[::1]:3000",), 200),
        (("Origin: https://models.example", "Sec-Fetch-Site: same-origin"), 200),  # a page behind a proxy
        (("Origin: https://other.example", "Sec-Fetch-Site: cross-site"), 403),
        (("Origin: http://other.example:8000",), 403),  # also one whose name leads to this machine
        (("Origin: http://127.0.0.1.other.example",), 403),
        (("Origin: http://localhost.other.example",), 403),
        (("Origin: null",), 403),
        (("Origin: http://[",), 403),
    ],
)
@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/models/echo/infer"])
def test_pages_of_other_sites_in_a_browser_may_not_ask(path, headers, status):
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
    ((found, _, _),), _ = talk(post(path, body, "Content-Type: text/plain", *headers))
    assert found == status


def test_clients_that_come_by_one_proxy_are_known_by_their_tokens(file):
    """Each has turns of its own in the queue of a model, where the requests of one client wait for each other."""
    others = ["another-token-that-nobody-guesses", "a-third-token-that-nobody-guesses"]
    file.write_text("\n".join([TOKEN, *others]))

    async def run():
        server, asked = HttpServer(Service(), tokens=Tokens(file)), []
        server.service.engine.infer = lambda call: asked.append(call.client)
        body = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}'
        for token in (TOKEN, *others, TOKEN):
            connection, _ = connect(server.service, server)
            connection.peer = "192.0.2.1"
            connection.data_received(
                b"POST /v2/models/echo/infer HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
                % (token.encode(), len(body), body)
            )
            await asyncio.sleep(0)
        return asked

    first, *between, last = asyncio.run(run())
    assert first == last
    assert len({first, *between}) == 3
    assert all(each.startswith("192.0.2.1 ") for each in (first, *between))
    assert TOKEN not in first
