from __future__ import annotations

import os
import socket

import pytest

from gemlet.daemon import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path, monkeypatch, abstract):
    address = f"\0gemlet-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + address[1:] if abstract else address)
        notify.systemd("READY=1")
        assert receiver.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify.systemd("READY=1")


def test_the_starter_is_told_and_the_pipe_closed():
    read_end, write_end = os.pipe()
    notify.starter(write_end)
    assert os.read(read_end, 100) == b"ready\n"
    assert os.read(read_end, 100) == b""
    os.close(read_end)


def test_a_starter_that_gave_up_does_not_matter():
    read_end, write_end = os.pipe()
    os.close(read_end)
    notify.starter(write_end)
    notify.starter(None)
