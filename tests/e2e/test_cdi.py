"""`gemlet cdi generate`, and where podman and crun are installed a real container in a group."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.programs import ALLOCATE
from tests.waiting import eventually

CONFIGURATION = """
[groups.team]
memory = "1GiB"
[groups."my team"]
memory = "2GiB"
"""


@pytest.fixture
def daemon(gemlet):
    """The command line with a running daemon that has the groups of CONFIGURATION."""
    path = gemlet.directory / "gemlet.toml"
    path.write_text(CONFIGURATION)
    waited = gemlet("run", "--simulate", "--group", "team", "-q", "--", "true", GEMLET_CONFIG=str(path))
    assert waited.returncode == 0, waited.stderr
    return gemlet


def test_the_groups_of_the_configuration_are_devices(daemon):
    shown = daemon("cdi", "generate", "--simulate")
    assert shown.returncode == 0, shown.stderr
    assert [device["name"] for device in json.loads(shown.stdout)["devices"]] == ["team"]
    assert "my team" in shown.stderr, "a group that cannot be a device is named"


@pytest.mark.parametrize("where", ["nowhere", "no-group", "not-a-name"])
def test_without_daemon_or_group_nothing_is_written(gemlet, request, tmp_path, where):
    path = tmp_path / "gemlet.json"
    if where != "nowhere":
        request.getfixturevalue("daemon")
    group = "my team" if where == "not-a-name" else "other"
    failed = gemlet("cdi", "generate", "--simulate", "--output", str(path), group)
    assert failed.returncode != 0
    assert "error: " in failed.stderr
    assert failed.stdout == ""
    assert not path.exists()


def test_the_file_is_for_everybody_to_read(daemon, tmp_path):
    path = tmp_path / "cdi" / "gemlet.json"
    assert daemon("cdi", "generate", "--simulate", "--output", str(path), "team").returncode == 0
    assert json.loads(path.read_text())["kind"] == "gemlet.dev/group"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["gemlet.json"]


# What podman sees: the test's own CDI files, and no hybrid of control groups, which crun refuses.
NAMESPACE = """
mount --bind "$0" /etc/cdi || exit
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec "$@"
"""


@pytest.fixture
def podman():
    """The command that runs the host's own files as a container, below an overlay; its files are in a directory."""
    for program in ("podman", "crun", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("podman with the root directory of the host needs root")
    Path("/etc/cdi").mkdir(exist_ok=True)
    place = tempfile.mkdtemp(prefix="g", dir="/tmp")  # podman takes no longer names
    yield [
        *("podman", "--runtime", "crun", "--cgroup-manager", "cgroupfs", "--root", f"{place}/s", "--runroot"),
        *(f"{place}/r", "run", "--rm", "--network=host", "--cgroups=disabled", "--ulimit=nofile=1024:1024"),
        *("--ulimit=nproc=1024:1024", "--security-opt=seccomp=unconfined"),
    ]
    # What podman leaves in the background may still write.
    eventually(lambda: shutil.rmtree(place, ignore_errors=True) or not Path(place).exists())


def contained(podman: list[str], cdi: Path, device: str, *command: str) -> subprocess.CompletedProcess[str]:
    """``command`` in a container that is given ``device``."""
    inside = [*podman, *(["--device", device] if device else []), "--rootfs", "/:O", *command]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", NAMESPACE, str(cdi), *inside],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_container_is_in_the_group_or_does_not_run(daemon, podman, tmp_path):
    probe = contained(podman, tmp_path, "", "true")
    if probe.returncode:
        pytest.skip(f"podman cannot start a container here: {probe.stderr.strip()[-300:]}")
    assert daemon("cdi", "generate", "--simulate", "--output", str(tmp_path / "gemlet.json")).returncode == 0
    allocate = [sys.executable, "-c", ALLOCATE, str(2 << 30)]

    seen = contained(podman, tmp_path, "gemlet.dev/group=team", *allocate)
    assert seen.stdout.split() == [str(1 << 30), "2"], seen.stderr

    unknown = contained(podman, tmp_path, "gemlet.dev/group=other", "true")
    assert unknown.returncode != 0
    assert "gemlet.dev/group=other" in unknown.stderr

    assert daemon("stop", "--simulate").returncode == 0
    alone = contained(podman, tmp_path, "gemlet.dev/group=team", *allocate)
    assert alone.stdout.split()[1] != "0", "a container without its daemon allocates nothing"


def test_a_container_of_a_group_that_is_gone_does_not_run(daemon, podman, tmp_path):
    probe = contained(podman, tmp_path, "", "true")
    if probe.returncode:
        pytest.skip(f"podman cannot start a container here: {probe.stderr.strip()[-300:]}")
    path = tmp_path / "gemlet.json"
    assert daemon("cdi", "generate", "--simulate", "--output", str(path), "team").returncode == 0
    path.write_text(path.read_text().replace("GEMLET_GROUP=team", "GEMLET_GROUP=gone"))
    gone = contained(podman, tmp_path, "gemlet.dev/group=team", sys.executable, "-c", ALLOCATE, "1024")
    assert gone.stdout.split()[1:] != ["0"], "a container whose group is gone allocates nothing"
