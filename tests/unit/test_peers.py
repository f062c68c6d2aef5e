"""The user at the other end of a connection, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from contextlib import closing
from unittest import mock

import pytest

from gemlet import accounts, peers

OTHER = 4321
CLIENT = """
import os, socket, sys
family, uid, host, port = sys.argv[1:]
os.setuid(int(uid))
connection = socket.socket(int(family), socket.SOCK_STREAM)
connection.connect((host, int(port)))
sys.stdin.read()
"""


def listener(family, address):
    server = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind((address, 0))
    server.listen()
    return server


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
@pytest.mark.parametrize("uid", [os.getuid(), OTHER])
def test_the_owner_of_the_other_end_is_known(family, address, uid):
    if uid != os.getuid() and os.getuid() != 0:
        pytest.skip("being another user needs root")
    with closing(listener(family, address)) as server:
        arguments = [str(int(family)), str(uid), *map(str, server.getsockname()[:2])]
        with subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], stdin=subprocess.PIPE) as client:
            server.settimeout(60)
            connection, peer = server.accept()
            with connection:
                here = connection.getsockname()
                assert peers.of_tcp(peer[:2], here[:2]) == uid
                assert peers.of_tcp((peer[0], 1), here[:2]) is None  # nobody's; the kernel tells of who listens
                assert peers.of_tcp(("192.0.2.1", peer[1]), here[:2]) is None
                assert peers.of_tcp(("nonsense", 1), here[:2]) is None
            client.stdin.close()  # until then it stays connected


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_nobody_owns_what_its_process_has_closed(family, address):
    """The kernel calls that uid 0: a client that sent something and closed would be taken for root."""
    with closing(listener(family, address)) as server, socket.socket(family, socket.SOCK_STREAM) as client:
        client.connect(server.getsockname())
        connection, peer = server.accept()
        with connection:
            here = connection.getsockname()
            client.shutdown(socket.SHUT_WR)
            assert peers.of_tcp(peer[:2], here[:2]) == os.getuid(), "it may still read"
            client.close()
            assert peers.of_tcp(peer[:2], here[:2]) is None


def test_a_unix_socket_tells_by_itself():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peers.of_unix(ours) == os.getuid()


def test_a_client_that_has_gone_is_nobody():
    with closing(listener(socket.AF_INET, "127.0.0.1")) as server, socket.socket() as client:
        client.connect(server.getsockname())
        connection, _ = server.accept()
        with connection:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # by a reset
            with pytest.raises(OSError, match="reset"):
                connection.recv(1)
            assert peers.of_transport(mock.Mock(get_extra_info=lambda _: connection)) is None


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_the_addresses_that_a_client_may_take_at_will_are_one(address, name):
    """A new one for each connection was a new turn for each."""
    connection = mock.Mock()
    connection.getpeername.return_value = (address, 1)
    assert peers.name(connection) == name


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.9.9"), (socket.AF_INET6, "::1")]
)
def test_within_this_machine_a_client_is_its_user(family, address):
    """All who connect to 127.0.0.1 were one, and who took another address for each connection was many."""
    with closing(listener(family, address)) as server, closing(socket.create_connection(server.getsockname()[:2])):
        connection, _ = server.accept()
        with closing(connection):
            assert peers.name(connection) == f"uid {os.getuid()}"


def test_a_client_of_this_machine_that_nobody_knows_has_a_name(monkeypatch):
    monkeypatch.setattr(peers, "of_socket", lambda connection: None)
    connection = mock.Mock()
    connection.getpeername.return_value = ("127.0.0.1", 1)
    assert peers.name(connection) == "this machine"


@pytest.mark.skipif(os.getuid() != 0, reason="being another user needs root")
def test_a_users_subordinate_uids_are_that_user(monkeypatch):
    """With 300 of them one user had another's upload refused, whose connections had cost less."""
    monkeypatch.setattr(accounts, "_account", accounts._account)
    with closing(listener(socket.AF_INET, "127.0.0.1")) as server:
        arguments = [str(int(socket.AF_INET)), str(OTHER), *map(str, server.getsockname()[:2])]
        with subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], stdin=subprocess.PIPE) as client:
            server.settimeout(60)
            connection, _ = server.accept()
            with connection:
                assert peers.name(connection) == f"uid {OTHER}"
                accounts.count_users_by(lambda uid: uid // 1000)
                assert peers.name(connection) == f"uid {OTHER // 1000}"
                assert peers.of_socket(connection) == OTHER, "rights go by the uid itself"
            client.stdin.close()
