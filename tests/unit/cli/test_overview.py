"""`gemlet`, `gemlet status` and `gemlet top` where no daemon runs: devices, programs, and what to type next."""

from __future__ import annotations

import json
import os
import sys

import pytest

from gemlet.cli import main
from gemlet.monitor import without_daemon
from tests.unit.devices.test_nvml import Card, FakeNvml

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with one device, on which this process computes, and no daemon."""
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(without_daemon, "sees_the_drivers_pids", lambda: True)
    fake = FakeNvml(Card("GPU-0", compute={os.getpid(): 300 * MIB}))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize("words", [["status"], ["top"], ["top", "--once"]])
def test_devices_and_programs_are_shown_without_a_daemon(machine, capsys, words):
    assert main.run(words) == 0
    out, err = capsys.readouterr()
    for word in ("no daemon at", "NVIDIA H200", "50%", "40 C", "1981 MHz", str(os.getpid()), "pytest", "300 MiB"):
        assert word in out, word
    assert "next: gemlet run" in err
    assert "error" not in err


def test_gemlet_alone_is_the_overview_on_a_terminal(machine, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.run([]) == 0
    out, err = capsys.readouterr()
    assert "NVIDIA H200" in out
    assert "next: gemlet run" in err


def test_gemlet_alone_is_a_mistake_in_a_script(machine, capsys):
    assert main.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Commands:" in err


def test_a_script_sees_that_there_is_no_daemon(machine, capsys):
    assert main.run(["status", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["schema"], document["daemon"], document["groups"], err) == (2, None, [], "")
    assert document["problem"].startswith("no daemon at ")
    [device], [program] = document["devices"], document["outside"]
    assert (device["uuid"], device["clock"], device["groups"]) == ("GPU-0", 1981, [])
    assert (program["pid"], program["memory"], program["device"]) == (os.getpid(), 300 * MIB, 0)
    assert program["user"]
    assert program["started"] > 1e9


def test_csv_without_a_daemon_is_its_header(machine, capsys):
    assert main.run(["status", "-o", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("device,uuid,group,")
    assert out.count("\n") == 1
    assert "no daemon at" in err


@pytest.mark.parametrize("words", [["status", "--simulate"], ["--socket", "/nowhere", "status"]])
def test_a_daemon_that_was_asked_for_by_name_is_missed(machine, capsys, words):
    assert main.run(words) == 125
    assert "error: no daemon at" in capsys.readouterr().err


def test_where_there_is_no_gpu_the_next_step_is_the_simulated_machine(machine, capsys):
    machine.init_error = "LIBRARY_NOT_FOUND"
    assert main.run(["status"]) == 0
    out, err = capsys.readouterr()
    assert "no devices: NVML cannot be used" in out
    assert "next: gemlet demo" in err


def test_a_container_does_not_take_others_for_its_own(machine, capsys, monkeypatch):
    monkeypatch.setattr(without_daemon, "sees_the_drivers_pids", lambda: False)
    assert main.run(["status"]) == 0
    out, _ = capsys.readouterr()
    assert "the driver's pids mean nothing in this container" in out
    assert str(os.getpid()) not in out
