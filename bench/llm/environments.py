"""The four environments of programs: native, under MPS, under gemlet, under gemlet and its MPS.

gemlet is used as people use it: `gemlet run` puts a program into its group, `gemlet set` changes the group between
rows. Each of the two environments with gemlet has a daemon of its own, which ends with the benchmark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.llm.rows import BEST_EFFORT, WAYS, Member, limits
from bench.own_mps import asked, mps_of_gemlet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NO_LIMITS = {"--min": "0", "--priority": "normal"}


@dataclass
class Environment:
    """Where programs run. ``groups``: the limits of each group as they are now, under gemlet."""

    name: str
    env: Mapping[str, str]
    gemlet: bool = False
    simulate: bool = False
    groups: dict[str, dict[str, str]] = field(default_factory=dict)

    def key(self, member: Member) -> tuple[str, str]:
        """Of the process: under gemlet's MPS the class of the group is read once, when the program starts."""
        fixed = self.name == "mps-gemlet" and member.priority == "best-effort"
        return self.name, f"{member.name}{BEST_EFFORT}" if fixed else member.name

    def command(self, member: Member, command: Sequence[str]) -> list[str]:
        """The command line of a program that starts now."""
        if not self.gemlet:
            return list(command)
        given = dict(limits(member))
        self.groups[self.key(member)[1]] = given
        options = [part for pair in given.items() for part in pair]
        more = ["--simulate"] if self.simulate else []
        run = [sys.executable, "-m", "gemlet", "run", "-q", *more, "--group", self.key(member)[1]]
        return [*run, *options, "--", *command]

    def prepare(self, members: Sequence[Member]) -> None:
        """Gives the groups of ``members`` their limits, and takes those of all others. Raises RuntimeError."""
        if not self.gemlet:
            return
        wanted = {self.key(member)[1]: dict(limits(member)) for member in members}
        everything = {group: wanted.get(group, NO_LIMITS) for group in self.groups}
        # What is taken first makes room for what is given: minima on a device add up to 1 at most.
        for group, given in sorted(everything.items(), key=lambda item: float(item[1]["--min"])):
            if self.groups[group] != given:
                more = ["--simulate"] if self.simulate else []
                asked("set", group, *more, *(part for pair in given.items() for part in pair), env=dict(self.env))
                self.groups[group] = given

    def forget(self, keys: Sequence[tuple[str, str]]) -> None:
        """Their programs have ended, and so will their groups."""
        for environment, group in keys:
            if environment == self.name:
                self.groups.pop(group, None)

    def record(self, members: Sequence[Member]) -> dict[str, Any]:
        """`gemlet status -o json` and `gemlet explain` of each group, without the cost of two processes each."""
        from gemlet.daemon import address
        from gemlet.daemon.connection import connect
        from gemlet.errors import GemletError

        said: dict[str, Any] = {}
        try:
            directory = Path(self.env["GEMLET_RUNTIME_DIR"])
            with connect(address.candidates(str(runtime(directory, simulate=self.simulate)))) as daemon:
                status = daemon.call("status")
                said["status"] = {key: value for key, value in status.items() if key != "events"}
                said["explain"] = {}
                for member in members:
                    explanation = daemon.call("explain", group=self.key(member)[1])
                    said["explain"][member.name] = [*explanation["lines"], explanation.get("hint") or ""]
        except (GemletError, OSError) as error:
            said["problem"] = str(error)
        return said


def write_trace(env: Mapping[str, str], group: str, seconds: float, path: Path) -> None:
    """The turns on the group's devices in the last ``seconds``, for Perfetto. Raises RuntimeError."""
    asked("trace", group, f"{seconds:g}s", "-o", str(path), env=dict(env))


def runtime(directory: Path, *, simulate: bool) -> Path:
    return directory / "sim" if simulate else directory


@contextlib.contextmanager
def environments(
    base: Mapping[str, str], ways: Sequence[str], *, simulate: bool
) -> Iterator[tuple[dict[str, Environment], dict[str, str]]]:
    """Those that ``ways`` need, by name; and why the others are not to be had."""
    names = {WAYS[way].environment for way in ways}
    found = {"native": Environment("native", base)}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if "gemlet" in names:
            env = stack.enter_context(own_daemon(base, simulate=simulate))
            found["gemlet"] = Environment("gemlet", env, gemlet=True, simulate=simulate)
        if names & {"mps", "mps-gemlet"}:
            try:
                mps = stack.enter_context(mps_of_gemlet(simulate=simulate))
            except RuntimeError as error:
                missing |= dict.fromkeys(("mps", "mps-gemlet"), str(error))
            else:
                pipe = {name: mps[name] for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
                found["mps"] = Environment("mps", dict(base) | pipe)
                rest = {name: value for name, value in base.items() if name not in pipe}
                under = rest | {"GEMLET_RUNTIME_DIR": mps["GEMLET_RUNTIME_DIR"]}
                found["mps-gemlet"] = Environment("mps-gemlet", under, gemlet=True, simulate=simulate)
        yield found, missing


@contextlib.contextmanager
def own_daemon(base: Mapping[str, str], *, simulate: bool) -> Iterator[dict[str, str]]:
    """The environment in which `gemlet run` starts a daemon of its own; it ends even if programs still use it."""
    folder = Path(tempfile.mkdtemp(prefix="gemlet-bench-", dir="/tmp"))  # a socket's path has at most 107 bytes
    env = dict(base) | {"GEMLET_RUNTIME_DIR": str(folder)}
    env.pop("GEMLET_SOCKET", None)
    more = ["--simulate"] if simulate else []
    try:
        yield env
    finally:
        with contextlib.suppress(RuntimeError, subprocess.SubprocessError, OSError):
            asked("stop", *more, env=env)
        shutil.rmtree(folder, ignore_errors=True)


def find_gemlet() -> None:
    """gemlet of this tree for all programs started here, where none is installed."""
    import gemlet

    source = str(Path(gemlet.__file__).resolve().parents[1])
    path = os.environ.get("PYTHONPATH", "")
    if source not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([source, path]) if path else source
