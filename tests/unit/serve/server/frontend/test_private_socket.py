"""Where a server listens at a Unix socket: what an ended one left is replaced, and nothing else is."""

from __future__ import annotations

import asyncio
import errno
import socket
import stat

import pytest

from gemlet.serve.server.frontend.connections import private_socket
from gemlet.serve.server.frontend.http_server import HttpServer
from tests.unit.serve.stand_in import Service


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


def listening(path):
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.bind(str(path))
    found.listen(0)
    return found


def test_what_an_ended_server_left_is_replaced(path):
    listening(path).close()
    with private_socket(str(path)) as found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found.listen()


def test_a_file_stays_as_it_is(path):
    path.write_text("a model")
    with pytest.raises(OSError, match="not a socket") as caught:
        private_socket(str(path))
    assert caught.value.errno == errno.EEXIST
    assert path.read_text() == "a model"


@pytest.mark.parametrize("waiting", [0, 1], ids=["room", "no room"])
def test_another_server_goes_on_also_where_it_accepts_nobody(path, waiting):
    """A client that connects would wait for one that is stopped."""
    with listening(path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        for _ in range(waiting):
            client.connect(str(path))
        with pytest.raises(OSError, match="in use"):
            private_socket(str(path))
        assert path.is_socket()


def served(path, act):
    async def run():
        server = HttpServer(Service())
        await server.listen_at(str(path))
        assert path.is_socket()
        act()
        await server.close()

    asyncio.run(run())


def test_nothing_stays_when_a_server_ends(path):
    served(path, lambda: None)
    assert not path.exists()


def test_what_took_the_place_of_a_socket_stays(path):
    def replace():
        path.unlink()
        listening(path).close()

    served(path, replace)
    assert path.is_socket()
