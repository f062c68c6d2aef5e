"""packaging/slurm with a real slurmctld, slurmd and munged on the simulated machine: `make slurm-test`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import gemlet  # noqa: F401  a fixture
from tests.e2e.programs import ALLOCATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Gemlet

SCRIPTS = Path(__file__).resolve().parents[2] / "packaging/slurm"
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "scontrol", "squeue")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
PrologFlags=Alloc
GresTypes=gemlet,gemlet_memory
Prolog={place}/prolog
Epilog={place}/epilog
TaskProlog={place}/task-prolog
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gemlet:100,gemlet_memory:8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PATIENCE_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")


@dataclass
class Slurm:
    place: Path
    gemlet: Gemlet
    environment: dict[str, str]

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def wait_for_state(self, state: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while state not in (said := self("sinfo", "--noheader", "--format=%T").stdout):
            assert time.monotonic() < end, f"the node is {said!r}, not {state}: {self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.place.glob("*.log")))

    def groups(self) -> list[str]:
        shown = json.loads(self.gemlet("status", "--simulate", "-o", "json").stdout)
        return [group["name"] for group in shown["groups"]]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def slurm(gemlet: Gemlet, tmp_path: Path) -> Iterator[Slurm]:  # noqa: F811
    """A cluster of this machine, whose jobs find the daemon of the simulated machine."""
    host = socket.gethostname().split(".")[0]
    runtime = gemlet.directory / "sim"
    (tmp_path / "gemlet").write_text(f'#!/bin/sh\nexec {sys.executable} -m gemlet.cli.main "$@"\n')
    (tmp_path / "gemlet").chmod(0o755)
    variables = {
        "GEMLET": tmp_path / "gemlet",
        "GEMLET_SOCKET": runtime,
        "GEMLET_RUNTIME_DIR": gemlet.directory,
        "GEMLET_SLURM_DIRECTORY": tmp_path / "jobs",
        "SLURM_CONF": tmp_path / "slurm.conf",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    for name in ("prolog", "epilog", "task-prolog"):
        exports = "\n".join(f"export {variable}='{value}'" for variable, value in variables.items())
        (tmp_path / name).write_text(f"#!/bin/sh\n{exports}\nexec {SCRIPTS / name}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host, place=tmp_path, controller=_free_port(), node=_free_port(), cpus=len(os.sched_getaffinity(0))
        )
    )
    (tmp_path / "gres.conf").write_text("Name=gemlet Count=100\nName=gemlet_memory Count=8\n")
    (tmp_path / "munge.key").write_bytes(os.urandom(128))
    (tmp_path / "munge.key").chmod(0o600)
    for name in ("state", "spool"):
        (tmp_path / name).mkdir()
    kept = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    made = Slurm(tmp_path, gemlet, kept)
    munge = [f"--{name}={tmp_path}/munge.{file}" for name, file in MUNGE_FILES.items()]
    commands = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]]
    started = []
    try:
        for command in commands:
            with (tmp_path / f"{command[0]}.log").open("w") as log:
                started.append(subprocess.Popen(command, env=kept, stdout=log, stderr=log))
            if command[0] == "munged":
                _appears(tmp_path / "munge.socket")
        made.wait_for_state("idle")
        yield made
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(PATIENCE_S)


MUNGE_FILES = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "munged.txt",
    "seed-file": "seed",
}


def _appears(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.05)


def start_daemon(gemlet: Gemlet) -> None:  # noqa: F811
    ready = gemlet("run", "--simulate", "-q", "--", "true")
    assert ready.returncode == 0, ready.stderr


def test_a_job_has_its_share_and_the_next_one_its_own(slurm: Slurm) -> None:
    start_daemon(slurm.gemlet)
    task = [sys.executable, "-c", ALLOCATE, str(3 << 30)]
    ran = slurm("srun", "--gres=gemlet:30,gemlet_memory:2", *task)
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.split() == [str(2 << 30), "2"], ran.stderr
    again = slurm("srun", "--gres=gemlet:30,gemlet_memory:4", *task)
    assert again.stdout.split() == [str(4 << 30), "0"], again.stderr
    end = time.monotonic() + PATIENCE_S
    while left := [*(slurm.place / "jobs").iterdir(), *(g for g in slurm.groups() if g.startswith("@slurm-"))]:
        assert time.monotonic() < end, f"epilog has left {left}"
        time.sleep(0.2)


def test_a_job_without_a_share_sees_no_gpu(slurm: Slurm) -> None:
    start_daemon(slurm.gemlet)
    ran = slurm("srun", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert ran.stdout.strip() == "-1", ran.stderr


def test_a_job_gets_no_share_by_its_name(slurm: Slurm) -> None:
    start_daemon(slurm.gemlet)
    ran = slurm("srun", "--job-name=x TresPerNode=gres/gemlet:50", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert ran.stdout.strip() == "-1", ran.stderr


def test_a_job_with_memory_and_no_share_is_cancelled_and_drains_no_node(slurm: Slurm) -> None:
    start_daemon(slurm.gemlet)
    started = slurm.place / "started"
    assert slurm("srun", "--gres=gemlet_memory:2", "touch", str(started)).returncode != 0
    assert not started.exists()
    slurm.wait_for_state("idle")


def test_a_job_whose_group_cannot_be_made_does_not_start(slurm: Slurm) -> None:
    started = slurm.place / "started"
    (slurm.place / "gemlet").write_text("#!/bin/sh\necho refused >&2\nexit 125\n")
    job = slurm("sbatch", "--parsable", "--gres=gemlet:30", "--output=/dev/null", f"--wrap=touch {started}")
    assert job.returncode == 0, job.stderr
    slurm.wait_for_state("drain")
    assert not started.exists()


def test_a_job_that_the_daemon_refuses_is_cancelled_and_drains_no_node(slurm: Slurm) -> None:
    holder = slurm.gemlet.start("run", "--simulate", "--min", "50%", "--", "sh", "-c", "echo held; exec sleep 300")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    started = slurm.place / "started"
    ran = slurm("srun", "--gres=gemlet:80", "touch", str(started))
    assert ran.returncode != 0
    assert not started.exists()
    slurm.wait_for_state("idle")


def test_a_task_whose_group_is_gone_ends(slurm: Slurm) -> None:
    start_daemon(slurm.gemlet)
    started = slurm.place / "started"
    script = slurm.place / "script"
    script.write_text(
        f"""#!/bin/sh
kill -- "-$(cat {slurm.place}/jobs/$SLURM_JOB_ID)"
while {slurm.place}/gemlet env --group "@slurm-$SLURM_JOB_ID" >/dev/null 2>&1; do sleep 0.2; done
echo group gone
srun touch {started}
echo srun ended with $?
"""
    )
    gemlet_of = {
        "GEMLET_SOCKET": str(slurm.gemlet.directory / "sim"),
        "GEMLET_RUNTIME_DIR": str(slurm.gemlet.directory),
    }
    slurm.environment |= gemlet_of
    ran = slurm("sbatch", "--wait", "--gres=gemlet:30", f"--output={slurm.place}/job.txt", str(script))
    said = (slurm.place / "job.txt").read_text()
    assert "group gone" in said, ran.stderr + slurm.logs()
    assert "srun ended with 0" not in said
    assert "srun ended with" in said
    assert not started.exists()
