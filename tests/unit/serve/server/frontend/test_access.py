"""The file of the tokens: it may change while the server runs, into anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemlet.serve.server.frontend.access import Tokens

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
    tokens.refresh()
    assert tokens.allows(f"Bearer {TOKEN}".encode())
    assert "the tokens are as they were" in caplog.text


def test_the_tokens_may_come_from_a_pipe_at_first():
    read, write = os.pipe()
    os.write(write, TOKEN.encode())
    os.close(write)
    os.fchmod(read, 0o600)
    tokens = Tokens(Path(f"/proc/self/fd/{read}"))
    tokens.refresh()
    assert tokens.allows(f"Bearer {TOKEN}".encode())
    os.close(read)
