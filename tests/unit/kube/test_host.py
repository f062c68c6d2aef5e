"""What the agent puts on its node: whole files, and never into a file that a program has mapped."""

from __future__ import annotations

import os

import pytest

from gemlet.errors import GemletError
from gemlet.kube import host


def test_a_hook_has_a_place_of_its_own_by_content(tmp_path):
    library = tmp_path / "libgemhook.so.1"
    library.write_bytes(b"one")
    check = tmp_path / "gemlet-start-check"
    check.write_bytes(b"check")
    first = host.install_hook(library, check, tmp_path / "state")
    assert host.install_hook(library, check, tmp_path / "state") == first
    library.write_bytes(b"two")
    second = host.install_hook(library, check, tmp_path / "state")
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert os.access(first, os.X_OK)
    assert os.access(first.with_name("gemlet-start-check"), os.X_OK)
    assert second.with_name("ld.so.preload").read_text() == "/opt/gemlet/libgemhook.so.1\n"
    assert (second.parent / "libgemhook.so.1.share").read_text() == "/run/gemlet/gemlet.sock\n60\n"


@pytest.mark.parametrize("name", ["libgemhook.so.1", "ld.so.preload", "libgemhook.so.1.share", "gemlet-start-check"])
@pytest.mark.parametrize("left", [b"", b"\0" * 3])
def test_what_a_power_cut_has_left_of_a_hook_is_not_taken_for_one(tmp_path, name, left):
    """A loader goes on without a hook that is none, and each pod of the node ran without limits."""
    library = tmp_path / "libgemhook.so.1"
    library.write_bytes(b"one")
    check = tmp_path / "gemlet-start-check"
    check.write_bytes(b"check")
    home = host.install_hook(library, check, tmp_path / "state").parent
    whole = (home / name).read_bytes()
    (home / name).write_bytes(left)
    assert host.install_hook(library, check, tmp_path / "state").parent == home
    assert (home / name).read_bytes() == whole


def test_the_simulated_driver_is_replaced_and_not_written_to(tmp_path):
    driver, profiles = tmp_path / "sim", tmp_path / "profiles"
    for directory in (driver, profiles):
        directory.mkdir()
    (driver / "libcuda.so.1").write_bytes(b"old")
    (profiles / "h200.toml").write_text("x = 1\n")
    lib, copies = host.install_simulated(driver, profiles, tmp_path / "state")
    assert (copies / "h200.toml").read_text() == "x = 1\n"
    with (lib / "libcuda.so.1").open("rb") as mapped:
        (driver / "libcuda.so.1").write_bytes(b"new")
        host.install_simulated(driver, profiles, tmp_path / "state")
        assert mapped.read() == b"old"
    assert (lib / "libcuda.so.1").read_bytes() == b"new"
    assert [path.name for path in lib.iterdir()] == ["libcuda.so.1"], "nothing half-made is left"


def test_nobody_but_root_looks_into_shares(tmp_path):
    shares = host.prepare(tmp_path / "state")
    for directory in (shares, shares.with_name("permits")):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_node_that_runs_no_program_from_the_agent_s_directory_is_told_so(tmp_path, monkeypatch):
    """No container of a claim would start there, and each pod would say so in words of the runtime's."""
    host.check_runs_programs(tmp_path)
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*found[:8], os.ST_NOEXEC, found[9]]))
    with pytest.raises(GemletError, match=r"mounted noexec.*gemlet-start-check"):
        host.check_runs_programs(tmp_path)


def test_a_node_has_one_agent(tmp_path):
    with host.alone(tmp_path / "gemlet"):
        with pytest.raises(GemletError, match="another agent") as caught, host.alone(tmp_path / "gemlet"):
            pass
        assert "uninstall" in caught.value.hint
    with host.alone(tmp_path / "gemlet"):
        pass
