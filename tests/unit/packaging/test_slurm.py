"""packaging/slurm with a Slurm and a gemlet that are played: what the prolog asks for, and whom it blames."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "packaging/slurm"
DRAINS = 1  # what slurmd takes for a fault of the node
GRANTS = 'echo "$@" >>"$PLAYED/gemlet.txt"; echo held; exec sleep 300'


@pytest.fixture(autouse=True)
def _installed():
    missing = [name for name in ("setsid", "awk") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture
def prolog(tmp_path):
    """Runs it for job 101. Returns its exit status, what was asked of gemlet, and whether the job was cancelled."""

    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PLAYED": str(tmp_path),
        "GEMLET": str(tmp_path / "gemlet"),
        "GEMLET_SLURM_DIRECTORY": str(tmp_path / "jobs"),
        "SLURM_JOB_ID": "101",
        "SLURM_JOB_UID": "2002",
    }

    def run(listed: str, *, gemlet: str = GRANTS, squeue: str = "") -> tuple[int, str, bool]:
        (tmp_path / "listed.txt").write_text(listed)
        played = {
            "squeue": squeue or 'echo "$@" >"$PLAYED/squeue.txt"; cat "$PLAYED/listed.txt"',
            "gemlet": gemlet,
            "scancel": 'echo "$@" >"$PLAYED/cancelled.txt"',
        }
        for name, text in played.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        done = subprocess.run([SCRIPTS / "prolog"], env=environment, check=False, capture_output=True)
        asked = tmp_path / "gemlet.txt"
        return done.returncode, asked.read_text() if asked.exists() else "", (tmp_path / "cancelled.txt").exists()

    yield run
    assert subprocess.run([SCRIPTS / "epilog"], env=environment, check=False, capture_output=True).returncode == 0
    assert not [*tmp_path.glob("jobs/*")]


@pytest.mark.parametrize(
    ("counts", "limits"),
    [
        ("gres:gemlet:30,gres:gemlet_memory:8", "--min 30% --memory 8GiB"),
        ("gres/gemlet=30", "--min 30%"),
        ("gres:gpu:1,gres:gemlet", "--min 1%"),
    ],
)
def test_the_group_is_for_the_user_of_the_job_alone(prolog, tmp_path, counts, limits):
    status, asked, cancelled = prolog(f"101   {counts}\n")
    assert (status, cancelled) == (0, False)
    assert asked.startswith(f"run --strict --group @slurm-101 --users 2002 {limits} -- ")
    assert "name" not in (tmp_path / "squeue.txt").read_text()  # users write it


@pytest.mark.parametrize("counts", ["N/A", "", "gres:gpu:1", "gres:gemlets:30"])
def test_a_job_without_a_share_has_no_group(prolog, counts):
    assert prolog(f"101   {counts}\n") == (0, "", False)


def test_another_task_of_an_array_has_its_own_counts(prolog):
    _, asked, _ = prolog("99    gres:gemlet:80\n101   gres:gemlet:20\n1010  gres:gemlet:90\n")
    assert "--min 20%" in asked


@pytest.mark.parametrize("counts", ["gres:gemlet:30,gres:gemlet:50", "gres:gemlet_memory:8"])
def test_a_job_that_asks_for_nonsense_is_cancelled_and_drains_no_node(prolog, tmp_path, counts):
    assert prolog(f"101   {counts}\n") == (0, "", True)
    assert (tmp_path / "jobs/101").read_text() == ""  # task-prolog finds no group


def test_a_job_that_the_daemon_refuses_is_cancelled(prolog, tmp_path):
    refuses = "echo 'error: the minimum 30% cannot be guaranteed' >&2; exit 125"
    assert prolog("101   gres:gemlet:30\n", gemlet=refuses) == (0, "", True)
    assert (tmp_path / "jobs/101").read_text() == ""


@pytest.mark.parametrize("listed", ["", "101 gres:gemlet:30\n101 gres:gemlet:50\n", "102 gres:gemlet:30\n"])
def test_a_job_that_is_not_listed_once_does_not_start(prolog, listed):
    assert prolog(listed) == (DRAINS, "", False)


def test_a_job_does_not_start_while_slurm_or_the_daemon_does_not_answer(prolog):
    assert prolog("", squeue="echo 'squeue: error: no contact' >&2; exit 1") == (DRAINS, "", False)
    assert prolog("101 gres:gemlet:30\n", gemlet="echo 'error: no daemon runs' >&2; exit 125") == (DRAINS, "", False)


def test_the_epilog_ends_the_holder_and_nobody_who_has_its_number_by_then(tmp_path):
    environment = os.environ | {"GEMLET_SLURM_DIRECTORY": str(tmp_path), "SLURM_JOB_ID": "7"}
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as holder:
        try:
            began = Path(f"/proc/{holder.pid}/stat").read_text().rpartition(") ")[2].split()[19]
            for written in (f"{holder.pid} {int(began) - 1}", ""):
                (tmp_path / "7").write_text(f"{written}\n")
                subprocess.run([SCRIPTS / "epilog"], env=environment, check=True)
                assert (holder.poll(), [*tmp_path.iterdir()]) == (None, [])
            (tmp_path / "7").write_text(f"{holder.pid} {began}\n")
            subprocess.run([SCRIPTS / "epilog"], env=environment, check=True)
            assert holder.wait(10) == -15
        finally:
            holder.kill()


def test_the_holder_ends_with_the_job(prolog, tmp_path):
    assert prolog("101 gres:gemlet:30\n")[0] == 0
    pid, began = map(int, (tmp_path / "jobs" / "101").read_text().split())
    assert began == int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
