"""Shared memory of clients, who may do with it what they like while the server reads and writes it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import regions as module
from gemlet.serve.server.frontend.regions import FOLDER, Regions


def mine(shared=None):
    """Regions as a client of this user sees them."""
    return (shared or Regions()).of(os.getuid)


@pytest.fixture
def shared():
    """A shared memory object of 16 bytes: its key and its descriptor."""
    key = f"gemlet-test-{uuid.uuid4().hex}"
    descriptor = os.open(FOLDER / key, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(descriptor, bytes(range(16)))
    yield key, descriptor
    os.close(descriptor)
    (FOLDER / key).unlink(missing_ok=True)


def test_parts_are_read_and_written(shared):
    key, descriptor = shared
    regions = mine()
    regions.register("r", f"/{key}", 4, 8)
    assert bytes(regions.read("r", 2, 3)) == bytes([6, 7, 8])
    regions.write("r", 6, b"ab")
    assert os.pread(descriptor, 16, 0)[9:13] == bytes([9]) + b"ab" + bytes([12])
    for offset, nbytes in ((0, 9), (8, 1), (-1, 2), (0, -1)):
        with pytest.raises(Refusal, match="not within region"):
            regions.read("r", offset, nbytes)


def test_memory_that_its_owner_makes_smaller_is_refused_and_ends_nobody(shared):
    key, descriptor = shared
    regions = mine()
    regions.register("r", key, 0, 16)
    os.ftruncate(descriptor, 8)
    for use in (lambda: regions.read("r", 0, 16), lambda: regions.write("r", 0, bytes(16))):
        with pytest.raises(Refusal, match="became smaller"):
            use()
    assert os.fstat(descriptor).st_size == 8


def test_what_was_read_does_not_change_any_more(shared):
    key, descriptor = shared
    regions = mine()
    regions.register("r", key, 0, 16)
    read = regions.read("r", 0, 2)
    os.pwrite(descriptor, b"xx", 0)
    assert bytes(read) == bytes([0, 1])


@pytest.mark.parametrize("key", ["", "/", "..", "../x", "a/b", "a\0b", "gemlet-no-such", "x" * 300])
def test_a_body_that_is_not_an_object_is_refused(key):
    with pytest.raises(Refusal):
        mine().register("r", key, 0, 1)


def test_links_are_not_followed(shared, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(16))
    link = FOLDER / f"gemlet-test-{uuid.uuid4().hex}"
    link.symlink_to(tmp_path / "secret")
    try:
        with pytest.raises(Refusal, match="cannot be opened"):
            mine().register("r", link.name, 0, 16)
    finally:
        link.unlink()


def test_their_number_and_their_bytes_have_limits(shared, monkeypatch):
    monkeypatch.setattr(module, "MAX_REGIONS", 2)
    regions = mine()
    before = len(list(Path("/proc/self/fd").iterdir()))
    regions.register("a", shared[0], 0, 1)
    regions.register("b", shared[0], 0, 1)
    with pytest.raises(Refusal, match="2 shared memory regions"):
        regions.register("c", shared[0], 0, 1)
    with pytest.raises(Refusal, match="fewer than 17"):
        mine().register("c", shared[0], 1, 16)
    regions.unregister()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    much = {"shared_memory_region": "a", "shared_memory_byte_size": module.MAX_READ_BYTES}
    regions.check_sizes([much, {}])
    with pytest.raises(Refusal, match="expected at most"):
        regions.check_sizes([much, much | {"shared_memory_byte_size": 1}, much | {"shared_memory_byte_size": -5}])


OTHER = 4321  # a uid that is not this one


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")
def test_objects_of_others_are_refused(shared):
    key, descriptor = shared
    os.fchown(descriptor, OTHER, OTHER)  # root may open it all the same
    with pytest.raises(Refusal, match="belongs to another user"):
        mine().register("r", key, 0, 16)


def test_regions_of_others_are_not_seen(shared):
    key, _ = shared
    regions = Regions()
    mine(regions).register("r", key, 0, 16)
    other = regions.of(lambda: OTHER)
    assert other.status() == []
    with pytest.raises(Refusal, match="no shared memory region"):
        other.read("r", 0, 1)
    with pytest.raises(Refusal, match="no shared memory region"):
        other.write("r", 0, b"x")
    with pytest.raises(Refusal, match="belongs to another user"):
        other.register("mine", key, 0, 16)
    other.unregister()
    assert [region.name for region in mine(regions).status()] == ["r"]
    mine(regions).unregister()


def test_a_client_whose_user_is_not_known_has_no_shared_memory(shared):
    unknown = Regions().of(lambda: None)
    with pytest.raises(Refusal, match="whose user it can see"):
        unknown.register("r", shared[0], 0, 16)
    assert unknown.status() == []
