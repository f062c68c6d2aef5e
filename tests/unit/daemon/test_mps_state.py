"""States of MPS, what stands in its way, and the words for both."""

from __future__ import annotations

import pytest

from gemlet.daemon.mps_state import MpsClient, MpsControl, MpsServer, MpsStatus, decide, named, obstacles, with_groups
from gemlet.devices.device import DeviceInfo, DeviceProcess


@pytest.mark.parametrize(
    ("intent", "alive", "state"),
    [
        (None, False, "off"),
        (None, True, "on"),
        ("on", True, "on"),
        ("on", False, "failed"),
        ("stopping", True, "stopping"),
        ("stopping", False, "off"),
    ],
)
def test_the_state_follows_from_what_was_meant_and_what_is(intent, alive, state):
    assert decide(intent, alive=alive) == state


def device(index: int = 0, mode: str | None = "default", pids: tuple[int, ...] = ()) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
        name="Fake H200",
        memory_total=1,
        memory_used=None,
        utilization=None,
        processes=tuple(DeviceProcess(pid=pid, memory_used=None) for pid in pids),
        compute_mode=mode,
    )


def test_nothing_is_in_the_way_of_most_machines():
    assert obstacles((), []) == []
    assert obstacles((), [device(), device(1, None), device(2, "exclusive-process")]) == []


def test_another_control_daemon_is_in_the_way():
    (found,) = obstacles([MpsControl(pid=7, uid=0, pipe_directory="/tmp/nvidia-mps")], [device()])
    assert found.fatal
    assert "pid 7 of uid 0, in /tmp/nvidia-mps" in found.message
    assert "echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control" in found.hint
    assert "--force" in found.hint


def test_the_directory_of_another_users_control_daemon_is_quoted_for_a_shell():
    """He chooses it, and an administrator is told to type it."""
    (found,) = obstacles([MpsControl(pid=7, uid=1000, pipe_directory="/tmp/a b;rm")], [device()])
    assert found.hint.count("CUDA_MPS_PIPE_DIRECTORY='/tmp/a b;rm' ") == 2


def test_prohibited_devices_are_in_the_way_if_there_are_no_others():
    (found,) = obstacles((), [device(0, "prohibited"), device(1)])
    assert not found.fatal
    assert "device 0" in found.message
    assert "nvidia-smi -i 0 -c DEFAULT" in found.hint
    assert all(obstacle.fatal for obstacle in obstacles((), [device(0, "prohibited")]))


def test_an_exclusive_device_in_use_is_said():
    (found,) = obstacles((), [device(3, "exclusive-process", (11, 12))])
    assert not found.fatal
    assert "pid 11, 12" in found.message


def test_only_root_can_serve_all_users():
    (found,) = obstacles((), [], shared=True, uid=998)
    assert found.fatal
    assert "only uid 998" in found.message
    assert obstacles((), [], shared=True, uid=0) == []
    assert obstacles((), [], shared=False, uid=1000) == []


def client(pid: int, group: str = "") -> MpsClient:
    return MpsClient(pid=pid, uid=1000, command="python", group=group)


def test_programs_are_named_and_many_are_counted():
    assert named([client(1, "team"), client(2)]) == "python (1, group team), python (2)"
    assert named([MpsClient(pid=3, uid=0, command="")]) == "a program (3)"
    assert named([client(n) for n in range(7)]).endswith("python (4) and 2 more")


def test_clients_get_the_names_of_their_groups():
    servers = (MpsServer(pid=9, uid=0, status="ACTIVE", clients=(client(1), client(2))),)
    status = MpsStatus(servers=with_groups(servers, {2: "team"}))
    assert [c.group for c in status.clients()] == ["", "team"]
