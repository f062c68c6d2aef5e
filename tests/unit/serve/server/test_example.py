"""The example's repository: written where there is nothing else, also in a folder of another user."""

from __future__ import annotations

import os

import pytest

from gemlet.errors import UsageError
from gemlet.serve.server.repository import example


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_is_written_into_a_folder_of_somebody_elses(tmp_path, monkeypatch):
    """A volume belongs to root, and its group may write: times and modes are the owner's to change."""

    def refuse(path, *_, **__):
        raise PermissionError(1, "Operation not permitted", str(path))

    for call in ("utime", "chmod", "chown", "setxattr"):
        monkeypatch.setattr(os, call, refuse)
    assert [path.name for path in example.write(tmp_path)] == ["language", "resnet50"]
    assert contents(tmp_path).keys() == {path for path in contents(example.SOURCE) if path.suffix != ".pyc"}


def test_a_copy_that_was_cut_short_is_completed(tmp_path):
    """A pod's first container starts again on the volume that it has left."""
    example.write(tmp_path)
    whole = contents(tmp_path)
    config = tmp_path / "language" / "config.yaml"
    config.write_bytes(config.read_bytes()[:20])
    (tmp_path / "resnet50" / "config.yaml").unlink()
    example.write(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("name", ["language/config.yaml", "language/2/model.py", "notes"])
def test_what_somebody_wrote_is_left_alone(tmp_path, name):
    example.write(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        example.write(tmp_path)
    assert contents(tmp_path) == before


def test_a_place_where_nothing_can_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="models cannot be written") as caught:
        example.write(tmp_path / "file" / "models")
    assert caught.value.hint == "name another directory"
