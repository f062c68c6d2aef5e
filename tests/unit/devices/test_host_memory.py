"""How much of the host swapped memory may take by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.devices.host_memory import cgroup_limits, default_limit

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def test_half_of_what_is_available() -> None:
    assert default_limit(100 * GIB, []) == 50 * GIB


def test_a_control_group_binds() -> None:
    assert default_limit(100 * GIB, [24 * GIB, 60 * GIB]) == 20 * GIB


def test_there_is_always_a_little() -> None:
    assert default_limit(0, [1 * GIB]) == 256 << 20


def test_every_level_of_the_hierarchy_counts(tmp_path: Path) -> None:
    root, inner = tmp_path / "cgroup", tmp_path / "cgroup/a/b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (root / "a/memory.max").write_text(f"{8 * GIB}\n")
    (root / "memory.max").write_text(f"{9 * GIB}\n")
    process = tmp_path / "self"
    process.write_text("0::/a/b\n")
    assert cgroup_limits(root, process) == [8 * GIB, 9 * GIB]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path, tmp_path / "none") == []
