"""The whole daemon is killed and started again, while programs are frozen, end, or have yet to be started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection
from gemlet.errors import GemletError
from tests.sim.robustness.hurt_machine import MIB, Machine, Running, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

# Groups go soon after their last process, so that a test need not wait long to see that one stays.
DAEMON = """
from gemlet.daemon import groups
groups.RESTORED_LINGER_SECONDS = 0.5
from gemlet.cli.main import main
main()
"""
LIMIT = "2048MiB"


@dataclass
class Host:
    """A machine whose daemon can be killed; programs come to it by `gemlet run`."""

    machine: Machine
    process: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> Path:
        return self.machine.folder

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        kept |= {k: v for k, v in os.environ.items() if k == "GEMLET_LIB_DIR"}
        return kept | {
            "GEMLET_RUNTIME_DIR": str(self.folder.parent),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def start(self, *options: str) -> None:
        elder = self.process
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DAEMON, "daemon", "--simulate", "--no-history", *options],
                env=self.environment(), stdout=log, stderr=log, text=True,
            )  # fmt: skip
        eventually(lambda: self.ask("ping").get("pid") == getattr(self.process, "pid", 0))
        if elder is not None:
            elder.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def ask(self, op: str) -> dict[str, Any]:
        try:
            with Connection(Endpoint(self.folder, "simulated")) as daemon:
                return daemon.call(op)
        except GemletError:
            return {}

    def groups(self) -> set[str]:
        return {group["name"] for group in self.ask("status")["groups"]}

    def used(self, group: str) -> int:
        """In MiB, by the books."""
        found = [g["memory_used"] for d in self.ask("status")["devices"] for g in d["groups"] if g["name"] == group]
        return sum(found) // MIB

    def run(self, *arguments: object) -> Running:
        """`gemlet run` with these options and a command."""
        command = ["-m", "gemlet", "run", "--simulate", "-q", *map(str, arguments)]
        running = Running(
            [sys.executable, *command],
            env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.machine.started.append(running)
        return running

    def grow(self, group: str, mib: int, *options: str) -> Running:
        """A program that holds so much, and a context."""
        running = self.run("--group", group, *options, "--", self.machine.program, "grow", 0, mib)
        assert running.line() == "ready", running.end()[2]
        return running

    def await_expiry(self) -> None:
        """Until groups that nobody uses have gone since: one that comes and goes has."""
        self.run("--group", "barrier", "--", "true").end()
        eventually(lambda: "barrier" not in self.groups())


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Host]:
    made = Host(Machine(tmp_path_factory.mktemp("m") / "sim", program))
    made.folder.mkdir()
    made.start()
    yield made
    for running in made.machine.started:
        running.kill()
        running.communicate()
    made.stop()


def more(program: Running, mib: int) -> str:
    """What comes of one more allocation: 0, or 2 (out of memory)."""
    program.tell(str(mib))
    return program.line().split()[0]


def settled(host: Host, group: str, mib: int) -> None:
    """Until the daemon has written down what the group holds."""
    eventually(lambda: host.used(group) == mib)
    eventually(lambda: sum(s["used"] + s["untracked"] for s in slots(host)) == mib * MIB)


def slots(host: Host) -> list[dict[str, Any]]:
    try:
        found = json.loads((host.folder / "members.json").read_bytes())
    except FileNotFoundError:
        return []
    return [slot for ledger in found for slot in ledger["slots"]]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_a_frozen_member_holds_counts(host: Host, how: str) -> None:
    frozen = host.grow("g", 1000, "--memory", LIMIT, "--strict")
    settled(host, "g", 1500)
    frozen.send_signal(signal.SIGSTOP)
    host.kill() if how == "killed" else host.stop()
    host.start()
    host.await_expiry()
    other = host.grow("g", 0, "--strict")
    assert host.used("g") == 1500 + 500
    assert (more(other, 40), more(other, 20)) == ("0", "2")
    assert [(u["pid"], u["group"]) for u in host.ask("status")["unmanaged"]] == [(frozen.pid, "g")]
    frozen.send_signal(signal.SIGCONT)
    eventually(lambda: not host.ask("status")["unmanaged"])
    assert host.used("g") == 2040
    assert (more(frozen, 20), more(other, 20), more(other, 4)) == ("2", "2", "0")
    frozen.kill()
    eventually(lambda: host.used("g") == 544)
    assert more(other, 1000) == "0"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_maximum_of_time_stays_for_a_frozen_program(host: Host, how: str) -> None:
    program = host.run("--group", "g", "--max", "30%", "--", host.machine.program, "work", 600)
    assert program.line() == "ready"
    settled(host, "g", 500)
    program.send_signal(signal.SIGSTOP)
    host.kill() if how == "killed" else host.stop()
    host.start()
    host.await_expiry()
    program.send_signal(signal.SIGCONT)
    eventually(lambda: not host.ask("status")["unmanaged"])
    (group,) = (g for d in host.ask("status")["devices"] for g in d["groups"] if g["name"] == "g")
    assert (group["max"], [client["pid"] for client in group["clients"]]) == (0.3, [program.pid])


def test_one_that_comes_back_allocates_by_what_the_others_hold_by_now(host: Host) -> None:
    """Not by the ledger of the daemon that is gone, although its watcher has yet to find the new one."""
    frozen, other = host.grow("g", 500, "--memory", LIMIT, "--strict"), host.grow("g", 0, "--strict")
    settled(host, "g", 1500)
    frozen.send_signal(signal.SIGSTOP)
    host.kill()
    host.start()
    eventually(lambda: len(host.ask("status")["unmanaged"]) == 1)
    assert more(other, 500) == "0"
    frozen.tell("500")
    frozen.send_signal(signal.SIGCONT)
    assert frozen.line().split()[0] == "2"


def test_what_it_took_after_the_daemon_last_wrote_is_counted_by_the_driver(host: Host) -> None:
    frozen = host.grow("g", 500, "--memory", LIMIT)
    settled(host, "g", 1000)
    host.kill()
    assert more(frozen, 500) == "0"
    frozen.send_signal(signal.SIGSTOP)
    host.start()
    other = host.grow("g", 0)
    assert (more(other, 40), more(other, 20)) == ("0", "2")


def test_a_member_that_ends_while_there_is_no_daemon_holds_nothing(host: Host) -> None:
    ends, stays = host.grow("g", 1000, "--memory", LIMIT), host.grow("g", 0)
    settled(host, "g", 2000)
    host.kill()
    ends.kill()
    ends.wait()
    host.start()
    assert more(stays, 1500) == "0"
    assert host.used("g") == 2000
    assert more(stays, 50) == "2"


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_a_program_lives_on_after_its_first_thread(host: Host, how: str) -> None:
    program = host.run("--group", "g", "--memory", LIMIT, "--", host.machine.program, "outlive", 0, 1000)
    assert program.line() == "ready"
    eventually(lambda: Path("/proc", str(program.pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z")
    settled(host, "g", 1500)
    if how == "killed":
        program.send_signal(signal.SIGSTOP)
        host.kill()
    host.start("--take-over")
    host.await_expiry()
    if how == "upgraded":
        eventually(lambda: not host.ask("status")["unmanaged"])
    assert host.used("g") == 1500
    other = host.grow("g", 0)
    assert (more(other, 40), more(other, 20)) == ("0", "2")
    program.send_signal(signal.SIGCONT)
    eventually(lambda: not host.ask("status")["unmanaged"])
    assert host.used("g") == 2040


def test_another_process_of_its_pid_is_not_the_member(host: Host) -> None:
    frozen = host.grow("g", 1000, "--memory", LIMIT)
    settled(host, "g", 1500)
    frozen.send_signal(signal.SIGSTOP)
    host.kill()
    file = host.folder / "members.json"
    found = json.loads(file.read_bytes())
    for ledger in found:
        for slot in ledger["slots"]:
            slot["started"] += 1
    file.write_text(json.dumps(found))
    host.start()
    assert host.used("g") == 0


@pytest.mark.parametrize("how", ["killed", "stopped", "upgraded"])
def test_the_limits_stay_for_what_a_launcher_has_yet_to_start(host: Host, how: str) -> None:
    shell = host.run("--group", "g", "--memory", LIMIT, "--", "sh")
    shell.tell("echo ready")
    assert shell.line() == "ready"
    if how == "upgraded":
        host.start("--take-over")
    else:
        host.kill() if how == "killed" else host.stop()
        host.start()
    host.await_expiry()
    shell.tell(f"exec {host.machine.program} grow 0 0")
    assert shell.line() == "ready"
    assert (more(shell, 1000), more(shell, 1000)) == ("0", "2")
    shell.kill()
    shell.wait()
    eventually(lambda: "g" not in host.groups())


@pytest.mark.parametrize(
    ("file", "content"),
    [("groups.json", "rubbish"), *(("members.json", content) for content in ("rubbish", "huge", "link", "fifo"))],
)
def test_a_file_that_no_daemon_wrote(host: Host, file: str, content: str) -> None:
    path = host.folder / file
    host.kill()
    path.unlink(missing_ok=True)
    if content == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif content == "link":
        path.symlink_to(os.devnull)
    elif content == "fifo":
        os.mkfifo(path)
    else:
        path.write_text(content)
    host.start()
    assert f"state file={path} cannot be used" in host.log()
    host.grow("g", 100, "--memory", LIMIT)
    settled(host, "g", 600)
