"""Where `gemlet cdi generate --output` writes: root runs it, and what is no file must outlive that."""

from __future__ import annotations

import json
import os
import stat
import threading

import pytest

from gemlet.cli import cdi
from gemlet.errors import GemletError

CONTENT = {"kind": "gemlet.dev/group"}


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "link.json").symlink_to("file.json")
    assert cdi.write(tmp_path / "link.json", CONTENT)
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "file.json").read_bytes()) == CONTENT
    assert not cdi.write(tmp_path / "link.json", CONTENT)


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    """As `/dev/null`, in whose place a file would break the machine; here a FIFO stands for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert cdi.write(pipe, CONTENT)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(60)
    assert json.loads(read[0]) == CONTENT
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("name", ["file/gemlet.json", "."])
def test_what_cannot_be_written_is_named_as_it_was_given(name, tmp_path):
    (tmp_path / "file").touch()
    output = tmp_path / name
    with pytest.raises(GemletError) as caught:
        cdi.write(output, CONTENT)
    assert caught.value.message.startswith(f"{output} cannot be written: ")
    assert caught.value.hint
