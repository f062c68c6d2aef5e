"""Files that are written for later readers, in folders where something else may lie."""

from __future__ import annotations

import os
import stat

import pytest

from gemlet import whole_file


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_its_mode_does_not_follow_the_umask(tmp_path):
    tmp_path.chmod(0o700)
    for mode in (0o600, 0o644):
        whole_file.write(tmp_path / "state.json", b"1", mode=mode)
        assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_link_beside_it_is_not_followed(tmp_path):
    victim, state = tmp_path / "victim", tmp_path / "state.json"
    victim.write_text("as it was")
    (tmp_path / ".state.json.new").symlink_to(victim)
    whole_file.write(state, b"new", durable=True)
    assert (victim.read_text(), state.read_bytes()) == ("as it was", b"new")


def test_a_pipe_beside_it_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".state.json.new")
    whole_file.write(tmp_path / "state.json", b"new")
    assert (tmp_path / "state.json").read_bytes() == b"new"


def test_a_link_in_its_place_is_replaced(tmp_path):
    victim, state = tmp_path / "victim", tmp_path / "state.json"
    victim.write_text("as it was")
    state.symlink_to(victim)
    whole_file.write(state, b"new")
    assert (victim.read_text(), state.read_bytes(), state.is_symlink()) == ("as it was", b"new", False)


def test_what_cannot_be_replaced_stands(tmp_path):
    (tmp_path / "state.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        whole_file.write(tmp_path / "state.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
