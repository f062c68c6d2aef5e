"""Programs outside gemlet: which count as such, and what may be done to which of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemlet.daemon.audit import SETTLE_SECONDS, Audit, used_outside
from gemlet.devices.device import DeviceInfo, DeviceProcess
from gemlet.devices.mps import Process, process
from gemlet.model import AuditSpec
from tests.counting import calls
from tests.hanging_exec import hanging
from tests.waiting import eventually

DEVICE = DeviceInfo(index=0, uuid="GPU-0", name="x", memory_total=1, memory_used=None, utilization=None)
LATE = SETTLE_SECONDS + 100


def using(*pids: int, **more: bool) -> list[DeviceInfo]:
    return [replace(DEVICE, processes=tuple(DeviceProcess(pid=pid, memory_used=5, **more) for pid in pids))]


def known(uid: int = 1000, started: int = 1):
    return lambda pid: Process(pid=pid, uid=uid, command=f"p{pid}", started=started)


@pytest.fixture
def program():
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield made
    made.kill()
    made.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pending(pid: int) -> set[int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_who_is_no_client_is_outside_and_said_once():
    audit = Audit(acts=False, find=known())
    found, news = audit.look(using(5, 6, 7), {6}, AuditSpec(), now=1.0)
    assert [(who.pid, who.command, who.memory, who.action) for who in found] == [(5, "p5", 5, ""), (7, "p7", 5, "")]
    assert news == found
    found, news = audit.look(using(5, 7), {7}, AuditSpec(), now=4.0)
    assert [(who.pid, who.seconds) for who in found] == [(5, 3.0)]
    assert news == []
    audit.look(using(), (), AuditSpec(), now=5.0)
    assert len(audit.look(using(5), (), AuditSpec(), now=6.0)[1]) == 1  # it went and came again


def test_one_that_was_just_seen_has_used_nothing_yet():
    audit = Audit(acts=False, find=known())
    found, _ = audit.look(using(5), (), AuditSpec(), now=1.0)
    assert used_outside(found) == set()
    found, _ = audit.look(using(5, 7), (), AuditSpec(), now=2.0)
    assert used_outside(found) == {found[0].device}


def test_the_start_of_a_process_is_worked_out_once(monkeypatch):
    asked = []
    monkeypatch.setattr("gemlet.daemon.audit.started_at", lambda ticks: asked.append(ticks) or 7.0)
    audit = Audit(acts=False, find=known(started=3))
    starts = {who.started for now in (1.0, 2.0, 3.0) for who in audit.look(using(5), (), AuditSpec(), now=now)[0]}
    assert (starts, asked) == ({7.0}, [3])


def test_a_pid_that_is_used_again_is_another():
    audit = Audit(acts=False, find=known(started=1))
    audit.look(using(5), (), AuditSpec(), now=1.0)
    audit._find = known(started=2)
    ((who,), news) = audit.look(using(5), (), AuditSpec(), now=9.0)
    assert who.seconds == 0.0
    assert news


def test_each_of_many_costs_no_look_at_the_others():
    """The daemon does nothing else meanwhile."""

    def spent(count: int) -> int:
        audit = Audit(acts=False, find=known())
        return calls(lambda: audit.look(using(*range(10**8, 10**8 + count)), (), AuditSpec(), now=1.0))

    assert spent(2000) < 15 * spent(200)


@pytest.mark.parametrize(("policy", "action"), [("stop", "stopped"), ("kill", "killed")])
def test_the_system_daemon_acts_after_its_time(program, policy, action):
    audit = Audit(acts=True, find=lambda pid: replace(process(pid), uid=1000) if process(pid) else None)
    spec = AuditSpec(policy=policy, after=10.0)
    for now in (LATE, LATE + 9):
        assert audit.look(using(program.pid), (), spec, now=now)[0][0].action == ""
    assert state(program.pid) in "SRD"  # not stopped
    ((who,), (said,)) = audit.look(using(program.pid), (), spec, now=LATE + 10)
    assert who.action == said.action == action
    if policy == "kill":
        assert program.wait(60) == -9
        return
    eventually(lambda: state(program.pid) == "T")
    assert audit.look(using(program.pid), (), spec, now=LATE + 20)[1] == []  # once


@pytest.mark.parametrize(
    "how",
    [
        "say",
        "a user's daemon",
        "just started",
        "root's",
        "allowed",
        "allowed, in a container",
        "draws",
        "a client",
        "another process by now",
    ],
)
def test_who_is_left_alone(program, how):
    uid = {"root's": 0, "allowed, in a container": 100_999}.get(how, 1000)
    asked = [1]

    def find(pid):
        asked[0] += how == "another process by now"
        return Process(pid=pid, uid=uid, command="p", started=asked[0])

    audit = Audit(acts=how != "a user's daemon", find=find, account={100_999: 1000}.get)
    spec = AuditSpec(policy="say" if how == "say" else "kill", after=0.0)
    for second in range(2):
        audit.look(
            using(program.pid, graphics=how == "draws"),
            {program.pid} if how == "a client" else (),
            spec,
            allowed={1000} if how.startswith("allowed") else (),
            now=second if how == "just started" else LATE,
        )
    assert program.poll() is None
    assert state(program.pid) in "SRD"  # not stopped


def test_nobody_escapes_by_a_start_that_cannot_be_known():
    with hanging() as pid:
        audit = Audit(acts=True)
        spec = AuditSpec(policy="kill", after=10.0)
        assert [who.pid for who in audit.look(using(pid), (), spec, now=LATE)[0]] == [pid]
        assert audit.look(using(pid), (), spec, now=LATE + 9)[1] == []
        assert [who.action for who in audit.look(using(pid), (), spec, now=LATE + 10)[1]] == ["killed"]
        assert signal.SIGKILL in pending(pid)  # it ends as soon as its file system lets it


def test_a_start_that_becomes_known_makes_no_other_process(program):
    audit = Audit(acts=False, find=known(started=0))
    audit.look(using(program.pid), (), AuditSpec(), now=1.0)
    audit._find = known(started=7)
    ((who,), news) = audit.look(using(program.pid), (), AuditSpec(), now=9.0)
    assert (who.seconds, news) == (8.0, [])
    assert who.started is not None


def test_it_never_signals_itself_or_init():
    audit = Audit(acts=True, find=known())
    audit.look(using(1, os.getpid()), (), AuditSpec(policy="kill", after=0.0), now=LATE)


def test_a_daemon_lists_and_tells_them(start_daemon, monkeypatch, program):
    monkeypatch.setattr("gemlet.daemon.observer.sees_the_drivers_pids", lambda: True)
    daemon = start_daemon()
    daemon.inventory.processes = (DeviceProcess(pid=program.pid, memory_used=7),)
    document = daemon.call("audit")
    assert (document["schema"], document["policy"]) == (1, "say")
    assert [who["pid"] for who in document["outside"]] == [program.pid]
    assert daemon.call("status")["outside"] == document["outside"]
    assert [event["pid"] for event in daemon.call("events") if event["kind"] == "outside"] == [program.pid]
    daemon.call("join", group="team")
    daemon.server.add_client("team", pid=program.pid)
    assert daemon.call("audit")["outside"] == []


def test_who_asks_for_audits_without_end_lets_the_driver_rest(start_daemon, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.observer.AUDIT_SECONDS", 3600.0)
    daemon, asked = start_daemon(), []
    devices = daemon.inventory.devices
    daemon.inventory.devices = lambda: asked.append(1) or devices()
    for _ in range(200):
        daemon.call("audit")
    assert len(asked) < 100


def test_in_a_container_the_drivers_pids_are_those_of_others(start_daemon, monkeypatch, program):
    monkeypatch.setattr("gemlet.daemon.observer.sees_the_drivers_pids", lambda: False)
    daemon = start_daemon(shared=True)
    daemon.inventory.processes = (DeviceProcess(pid=program.pid, memory_used=7),)
    assert daemon.call("audit")["outside"] == []
