"""What is granted and would rather have been said: no GPU, and a limit that leaves no memory."""

from __future__ import annotations

import pytest

from gemlet.daemon.request_warnings import (
    MIB,
    held_by_mps,
    memory_beyond_device,
    memory_for_nothing,
    perhaps_misspelt,
    resident_for_nothing,
)
from tests.unit.daemon import fakes
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("limit", "measured", "said"),
    [
        (None, 500 * MIB, False),
        (MIB, 0, True),
        (64 * MIB, 0, False),
        (64 * MIB, 500 * MIB, True),
        (500 * MIB, 500 * MIB, False),
    ],
)
def test_a_limit_below_one_context(limit, measured, said):
    assert bool(memory_for_nothing(limit, measured, group="a", simulated=False)) == said


def test_the_hint_is_for_the_machine_that_is_meant():
    assert "--simulate" in memory_for_nothing(1, 0, group="a", simulated=True)["hint"]
    assert "--simulate" not in memory_for_nothing(1, 0, group="a", simulated=False)["hint"]


def test_what_would_happen_depends_on_what_is_known():
    assert "first context is created" in memory_for_nothing(MIB, 0, group="a", simulated=False)["message"]
    said = memory_for_nothing(MIB, 500 * MIB, group="a b", simulated=False)
    assert "(500 MiB here): its contexts will be refused" in said["message"]
    assert "gemlet set 'a b' --memory" in said["hint"]


def test_a_program_is_told_that_there_is_no_gpu(start_daemon, monkeypatch):
    daemon = start_daemon()
    assert daemon.call("join", group="a")["warnings"] == []
    daemon.stop()
    monkeypatch.setattr(fakes.FakeInventory, "__init__", lambda self: vars(self).update(held={}, broken=True))
    daemon = start_daemon()
    (said,) = daemon.call("join", group="a")["warnings"]
    assert said["message"] == "no GPU was found: NVML does not answer"
    assert "--simulate" in said["hint"]
    daemon.inventory.broken = False  # the driver has come up this moment
    assert daemon.call("join", group="a")["warnings"] == []


def test_join_and_set_warn_of_a_limit_below_one_context(start_daemon):
    daemon = start_daemon()
    (said,) = daemon.call("join", group="a", limits={"memory": MIB})["warnings"]
    assert "1 MiB of memory is less than one CUDA context takes" in said["message"]
    assert daemon.call("set", group="a", limits={"max": 0.5})["warnings"] == []
    assert daemon.call("set", group="a", limits={"memory": 2 * MIB})["warnings"]
    assert daemon.call("set", group="a", limits={"memory": "none"})["warnings"] == []


@pytest.mark.parametrize(
    ("limit", "largest", "movable", "said"),
    [
        (None, 500 * MIB, False, False),
        (501 * MIB, None, False, False),
        (500 * MIB, 500 * MIB, False, False),
        (501 * MIB, 500 * MIB, True, False),
        (501 * MIB, 500 * MIB, False, True),
    ],
)
def test_a_limit_beyond_the_device(limit, largest, movable, said):
    assert bool(memory_beyond_device(limit, largest, movable=movable)) == said


@pytest.mark.parametrize(
    ("resident", "limit", "said"), [(None, MIB, False), (MIB, None, False), (MIB, 2 * MIB, False), (MIB, MIB, True)]
)
def test_a_part_that_is_all(resident, limit, said):
    assert bool(resident_for_nothing(resident, limit)) == said


def test_a_part_that_is_all_and_one_that_is_more_are_told_apart():
    assert "is all of its 1 MiB of memory" in resident_for_nothing(MIB, MIB)["message"]
    assert "is more than its 1 MiB of memory" in resident_for_nothing(2 * MIB, MIB)["message"]


def test_join_warns_of_memory_that_no_device_has(start_daemon):
    daemon = start_daemon()
    (said,) = daemon.call("join", group="a", limits={"memory": 1 << 50})["warnings"]
    assert "of memory is more than any device here has" in said["message"]
    assert daemon.call("join", group="b", limits={"memory": 1 << 50, "resident": 1 << 30})["warnings"] == []
    (said,) = daemon.call("join", group="c", limits={"memory": 1 << 30, "resident": 2 << 30})["warnings"]
    assert "2 GiB on the device at a time is more than its 1 GiB of memory" in said["message"]


def test_a_daemon_ends_only_if_it_is_unused(start_daemon):
    from gemlet.errors import Refused

    daemon = start_daemon()
    daemon.call("join", group="a")  # by this process, which lives
    with pytest.raises(Refused, match="in use"):
        daemon.call("shutdown", unused=True)
    assert daemon.call("ping")
    daemon.call("shutdown")
    daemon.thread.join(60)
    assert not daemon.thread.is_alive()


@pytest.mark.parametrize(
    ("before", "after", "under_mps", "said"),
    [(1, 2, True, True), (1, None, True, True), (2, 1, True, False), (None, 1, True, False), (1, 2, False, False)],
)
def test_what_the_driver_goes_on_holding_is_said(before, after, under_mps, said):
    assert bool(held_by_mps(before, after, under_mps=under_mps)) is said


def test_a_program_that_changes_its_group_for_others_is_told(start_daemon):
    daemon = start_daemon()
    daemon.call("join", group="team", limits={"min": 0.75})
    assert daemon.call("join", group="team", limits={"min": 0.7})["warnings"] == []
    daemon.server.add_client("team")
    eventually(lambda: daemon.groups()["team"]["clients"] == 1)
    assert daemon.call("join", group="team")["warnings"] == []
    assert daemon.call("join", group="team", limits={"min": 0.7})["warnings"] == []
    (said,) = daemon.call("join", group="team", limits={"min": 0.5, "memory": 8 << 30})["warnings"]
    assert (
        "group team for a program that runs in it: min from 70% to 50%, memory from any amount to 8 GiB"
        in (said["message"])
    )


def test_a_slowdown_where_no_request_is_bounded(start_daemon):
    daemon = start_daemon()
    (said,) = daemon.call("join", group="a", limits={"slowdown": 1.3})["warnings"]
    assert "1.3 bounds requests of priority latency: this group's is normal" in said["message"]
    assert daemon.call("set", group="a", limits={"priority": "latency"})["warnings"] == []
    assert daemon.call("join", group="b", limits={"slowdown": 1.3, "priority": "latency"})["warnings"] == []
    (said,) = daemon.call("set", group="a", limits={"priority": "normal", "slowdown": 1.5})["warnings"]
    assert "1.5" in said["message"]


@pytest.mark.parametrize("name", ["Notebook", "noteboo", "ntoebook", "nottebook", "NOTEBOOK"])
def test_a_name_like_one_of_the_configuration_is_said(name):
    """Its programs would have no limits, where the group that was meant has some."""
    said = perhaps_misspelt(name, ["training", "notebook"])
    assert said is not None
    assert "without limits" in said["message"]
    assert "notebook" in said["hint"]


@pytest.mark.parametrize(
    ("name", "configured"),
    [
        ("team-b", "team-a"),
        ("job-11", "job-1"),
        ("job-1", "job-11"),
        ("job", "jobs"),
        ("other", "training"),
        ("a", "b"),
    ],
)
def test_names_that_are_alike_on_purpose_are_not(name, configured):
    assert perhaps_misspelt(name, [configured]) is None


def test_join_warns_of_a_new_name_once_and_only_without_limits(start_daemon, tmp_path):
    (tmp_path / "gemlet.toml").write_text('[groups.notebook]\nmax = "40%"\n')
    daemon = start_daemon(config=str(tmp_path / "gemlet.toml"))
    (said,) = daemon.call("join", group="Notebook")["warnings"]
    assert said["hint"] == "did you mean notebook, which the configuration has?"
    assert daemon.call("join", group="Notebook")["warnings"] == []
    assert daemon.call("join", group="noteboo", limits={"max": 0.5})["warnings"] == []
    assert daemon.call("join", group="notebook")["warnings"] == []
