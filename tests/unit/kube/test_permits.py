"""Which pods may start in which shares, and the program that a container runtime asks before each container."""

from __future__ import annotations

import json
import subprocess

import pytest

from gemlet import paths
from gemlet.kube.permits import MAY_START, NotWritten, Permits, refusals
from tests.unit.kube import fakes

UID = "4be9c1f0-1a2b-4c3d-8e5f-0123456789ab"
OTHER = "00000000-1a2b-4c3d-8e5f-0123456789ab"
UNDERSCORED = UID.replace("-", "_")
# As kubelets name them, with cgroups of both versions, both drivers, and below another cgroup.
CGROUPS = [
    f"0::/kubepods/burstable/pod{UID}/3f0c",
    f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-3f0c.scope",
    f"0::/kubelet/kubepods/pod{UID}/crio-3f0c",
    f"12:pids:/kubepods/pod{UID}/3f0c\n11:devices:/kubepods/pod{UID}/3f0c\n0::/system.slice/containerd.service",
    f"0::/pod{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/crio-conmon-3f0c",
]


@pytest.fixture
def permits(tmp_path):
    return Permits(tmp_path / "permits")


class Runtime:
    """As runc and crun run it: the container's state on its standard input."""

    def __init__(self, path):
        self.proc = path / "proc"
        self.permits = path / "permits"
        (self.permits / "claim-u1").mkdir(parents=True)
        self.state = {"ociVersion": "1.0.2", "id": "3f0c", "pid": 77, "bundle": "/run/b", "annotations": {"pid": "1"}}
        self.put(CGROUPS[0])

    def put(self, cgroups, pid=77):
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"{cgroups}\n")

    def start(self, *seconds):
        command = [paths.start_check_path(), str(self.permits / "claim-u1"), str(self.proc), *seconds]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def said(self, process, state=None):
        _, words = process.communicate(json.dumps(self.state) if state is None else state)
        return process.returncode, words


@pytest.fixture
def runtime(tmp_path):
    return Runtime(tmp_path)


@pytest.mark.parametrize("cgroups", CGROUPS)
def test_a_container_starts_whose_pod_may(permits, runtime, cgroups):
    runtime.put(cgroups)
    permits.say("claim-u1", UID, None)
    assert runtime.said(runtime.start()) == (0, "")


def test_a_container_does_not_start_whose_pod_may_not_and_says_why(permits, runtime):
    permits.say("claim-u1", UID, "env[LD_PRELOAD]: would let the program escape")
    code, words = runtime.said(runtime.start())
    assert code != 0
    assert words == (
        "gemlet: the container does not start in its share: env[LD_PRELOAD]: would let the program escape\n\n"
    )


def test_what_a_power_cut_has_left_of_a_permit_is_none_and_what_the_agent_writes_then_counts(permits, runtime):
    permits.say("claim-u1", UID, None)
    (runtime.permits / "claim-u1" / UID).write_text("")
    assert runtime.said(runtime.start("1"))[0] != 0
    process = runtime.start()
    process.stdin.write(json.dumps(runtime.state))
    process.stdin.flush()
    permits.enforce({"claim-u1"})
    assert runtime.said(process, "") == (0, "")


def test_a_container_waits_for_an_agent_that_has_not_seen_its_pod(permits, runtime):
    """The kubelet may be faster than the agent's watch, and a pod that is not restarted would have failed for good."""
    process = runtime.start()
    process.stdin.write(json.dumps(runtime.state))
    process.stdin.flush()
    permits.say("claim-u1", OTHER, None)
    permits.say("claim-u2", UID, None)
    assert process.poll() is None
    permits.say("claim-u1", UID, None)
    assert runtime.said(process, "") == (0, "")


def test_what_nobody_looks_at_does_not_start(runtime):
    code, words = runtime.said(runtime.start("1"))
    assert code != 0
    assert "has not seen the pod yet" in words


def test_nothing_waits_for_a_share_that_is_no_more(runtime):
    """While a container waits, the kubelet has no measurements of the whole node, by which it evicts pods."""
    (runtime.permits / "claim-u1").rmdir()
    code, words = runtime.said(runtime.start("900"))
    assert code != 0
    assert "knows the share no more" in words


def test_a_pod_that_is_deleted_before_it_starts_keeps_no_runtime_waiting(permits, runtime, tmp_path, monkeypatch):
    """Each such pod kept its node without measurements for as long as it waited."""
    directory = tmp_path / "permits"
    for uid in (UID, OTHER):
        permits.say("claim-u1", uid, None)
    permits.end(UID)
    code, words = runtime.said(runtime.start())
    assert code != 0
    assert "the pod has ended" in words
    assert permits.refused() == set()
    assert refusals(directory, "claim-u1") == {}
    permits.enforce({"claim-u1"})
    assert {file.name for file in (directory / "claim-u1").iterdir()} == {UID, OTHER}
    monkeypatch.setattr("gemlet.kube.permits.ENDED_SECONDS", 0)
    permits.enforce({"claim-u1"})
    assert {file.name for file in (directory / "claim-u1").iterdir()} == {OTHER}, "pods may come and go without end"


@pytest.mark.parametrize(
    ("state", "cgroups", "reason"),
    [
        ("", CGROUPS[0], "did not say which process"),
        ('{"id": "x"}', CGROUPS[0], "did not say which process"),
        ('{"pid": 0}', CGROUPS[0], "did not say which process"),
        ('{"pid"', CGROUPS[0], "did not say which process"),
        ('{"x": "pid", "annotations": {"pid": 77}}', CGROUPS[0], "did not say which process"),
        ('{"annotations": {"a": "\\"pid\\": 77"}, "pid": 78}', CGROUPS[0], "cgroups cannot be read"),
        ('{"pid": 77}', "0::/system.slice/podman.service", "name no pod"),
        ('{"pid": 77}', f"0::/pod{UID[:-1]}", "name no pod"),
    ],
)
def test_what_cannot_be_told_apart_does_not_start(permits, runtime, state, cgroups, reason):
    runtime.put(cgroups)
    permits.say("claim-u1", UID, None)
    code, words = runtime.said(runtime.start(), state)
    assert code != 0
    assert reason in words


def test_a_state_as_large_as_an_annotation_may_be_is_read(permits, runtime):
    permits.say("claim-u1", UID, None)
    state = json.dumps({"annotations": {"a": '"pid": 1, ' * 26_000}, "pid": 77}, indent=4)
    assert runtime.said(runtime.start(), state) == (0, "")


def test_a_full_disk_keeps_no_pod_from_being_refused(permits, tmp_path, monkeypatch):
    permits.say("claim-u1", UID, None)

    def full(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gemlet.kube.permits.whole_file.write", full)
    permits.say("claim-u1", UID, "is hostile now")
    assert not (tmp_path / "permits" / "claim-u1" / UID).exists()
    assert permits.left_open() == set()
    with pytest.raises(NotWritten, match="No space left"):
        permits.enforce({"claim-u1"})
    monkeypatch.undo()
    permits.enforce({"claim-u1"})
    assert refusals(tmp_path / "permits", "claim-u1") == {UID: "is hostile now"}


def test_a_file_that_cannot_be_removed_is_told_of_and_keeps_no_other_back(permits, tmp_path, monkeypatch):
    directory = tmp_path / "permits" / "claim-u1"
    for uid in (UID, OTHER):
        permits.say("claim-u1", uid, None)
    permits.say("claim-u2", UID, None)
    stuck = fakes.Stuck(directory, monkeypatch)
    for share_id in ("claim-u1", "claim-u2"):
        permits.say(share_id, UID, "is hostile now")
    assert permits.left_open() == {"claim-u1"}
    (directory / OTHER).write_text("lost")
    with pytest.raises(NotWritten, match="Read-only"):
        permits.enforce({"claim-u1", "claim-u2"})
    stuck.mended = True
    permits.enforce({"claim-u1", "claim-u2"})
    assert permits.left_open() == set()
    assert (directory / OTHER).read_text() == MAY_START, "what somebody has changed is put back"


def test_what_a_share_left_behind_goes(permits, tmp_path):
    permits.say("claim-u1", UID, None)
    permits.say("claim-u2", UID, None)
    permits.enforce({"claim-u2"})
    assert [path.name for path in (tmp_path / "permits").iterdir()] == ["claim-u2"]
    assert permits.shares_of(UID) == {"claim-u2"}


def test_of_a_pod_that_ends_while_no_agent_runs_a_file_says_so_for_a_while(permits, tmp_path, monkeypatch):
    directory = tmp_path / "permits"
    permits.say("claim-u1", UID, None)
    for _ in range(2):  # the next agent may end, too
        permits = Permits(directory)
        assert permits.pods() == {UID}
        permits.end(UID)
        permits.enforce({"claim-u1"})
        assert (directory / "claim-u1" / UID).read_text() == "gemlet: the pod has ended\n"
    monkeypatch.setattr("gemlet.kube.permits.ENDED_SECONDS", 0)
    permits.enforce({"claim-u1"})
    assert permits.pods() == set()
