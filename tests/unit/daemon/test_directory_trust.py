"""Where sockets are made: nowhere where another user could put one of their own in their place."""

from __future__ import annotations

import os

import pytest

from gemlet.daemon.directory_trust import distrust

OTHER = 4321  # a uid that is not this one


@pytest.fixture
def place(tmp_path):
    """A directory in a directory, made by this user alone."""
    found = tmp_path / "outer" / "ipc"
    found.mkdir(parents=True)
    for each in (found, found.parent):
        each.chmod(0o755)
    return found


def test_a_directory_of_this_user_is_trusted(place):
    assert distrust(place) is None
    assert distrust(place / "not" / "there") is None
    place.parent.chmod(0o1777)  # as /tmp
    assert distrust(place) is None


@pytest.mark.parametrize("depth", [0, 1])
def test_a_directory_that_others_may_write_to_is_not_trusted_wherever_it_is_on_the_way(place, depth):
    opened = (place, place.parent)[depth]
    opened.chmod(0o757)
    assert distrust(place) == f"other users can write to {opened}"


def test_a_sticky_directory_is_no_place_for_the_sockets_themselves(place):
    place.chmod(0o1777)
    assert distrust(place) == f"other users can write to {place}"


@pytest.mark.skipif(os.getuid() != 0, reason="giving a directory to another user needs root")
@pytest.mark.parametrize("depth", [0, 1])
def test_a_directory_of_another_user_is_not_trusted_wherever_it_is_on_the_way(place, depth):
    given = (place, place.parent)[depth]
    os.chown(given, OTHER, OTHER)
    assert distrust(place) == f"{given} belongs to another user (uid {OTHER})"


@pytest.mark.skipif(os.getuid() != 0, reason="giving a directory to another group needs root")
def test_a_group_of_several_users_may_not_write(place):
    place.parent.chmod(0o775)
    assert distrust(place) is None
    os.chown(place.parent, -1, OTHER)
    assert distrust(place) == f"other users can write to {place.parent}"


def test_every_link_on_the_way_is_looked_at(place, tmp_path):
    opened = tmp_path / "opened"
    opened.mkdir()
    (opened / "second").symlink_to(place)
    (tmp_path / "first").symlink_to("opened/second")
    assert distrust(tmp_path / "first") is None
    opened.chmod(0o757)
    assert distrust(tmp_path / "first") == f"other users can write to {opened}"
    (tmp_path / "loop").symlink_to("loop")
    assert distrust(tmp_path / "loop") is None  # nothing can be made there
