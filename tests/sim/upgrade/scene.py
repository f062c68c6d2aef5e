"""A daemon on the simulated machine, programs in groups with limits, and daemons that take over from one another."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.compiled import compiled, cuda_include

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

CONTEXT = 500  # MiB, of the simulated H200
HELD = 20  # MiB that each program holds besides
MEMBERS = 10  # of a group
LIMIT = MEMBERS * (2 * CONTEXT + HELD)  # MiB of a group; one that starts counts its context twice for a moment
TOO_MUCH = 6000  # MiB: more than a full group has left, and less than one has that forgot its members
KERNEL = 1_000_000  # ns
CAP = 0.25  # of the device of those without pauses, for one group of them
SATURATING = 2  # programs without pauses in each group of these
PATIENCE = 120.0
WORDS = struct.Struct("=6Q")


@dataclass
class Words:
    """What a program has noted; times in ns."""

    rounds: int = 0
    at: int = 0
    longest: int = 0
    began: int = 0
    failures: int = 0
    passed: int = 0


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    group: str
    said: Path
    file: Path
    strict: bool
    hook: str

    def words(self) -> Words:
        try:
            return Words(*WORDS.unpack(self.file.read_bytes()))
        except (OSError, struct.error):
            return Words()

    def forget_longest(self) -> None:
        with self.file.open("r+b") as file:
            file.seek(16)
            file.write(bytes(8))


@dataclass
class Scene:
    """``hooks``: paths of hooks that programs take turns to load; none: this version's."""

    folder: Path
    devices: int = 1
    hooks: Sequence[str] = ()
    programs: list[Program] = field(default_factory=list)
    daemons: int = 0

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self.programs:
            program.process.kill()
        for program in self.programs:
            program.process.communicate()
        with contextlib.suppress(AttributeError):
            self.daemon.terminate()
            self.daemon.wait(PATIENCE)

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        kept |= {k: v for k, v in os.environ.items() if k == "GEMLET_LIB_DIR"}
        return kept | {
            "GEMLET_RUNTIME_DIR": str(self.folder),
            "GEMLET_SIM_DEVICES": str(self.devices),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def gemlet(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gemlet", *arguments],
            env=self.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{arguments}: {done.stderr}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.gemlet("status", "--simulate", "-o", "json")))

    # --- daemons -----------------------------------------------------------------------------------------------------

    def begin(self, groups: int) -> None:
        """Starts the first daemon, with so many groups of programs that pause and two of those that do not."""
        tables = [f'[groups.g{n}]\nmin = "1%"\nmemory = "{LIMIT}MiB"\n' for n in range(groups)]
        tables += [f'[groups.capped]\nmax = {CAP}\nmemory = "{LIMIT}MiB"\n', "[groups.open]\n"]
        (self.folder / "gemlet.toml").write_text("".join(tables))
        self.daemon = self.start_daemon()
        self.until("the daemon answers", self.answers)
        exports = self.gemlet("env", "--simulate", "--group", "open")
        pairs = (line.removeprefix("export ").split("=", 1) for line in exports.splitlines() if "=" in line)
        self.variables = {name: shlex.split(value)[0] if value else "" for name, value in pairs}
        driver = Path(self.variables["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1"
        options = ("-O1", f"-isystem{cuda_include()}", driver)
        self.client = compiled("cc", *options, sources=(Path(__file__).parent / "client.c",))

    def start_daemon(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.daemons += 1
        command = [sys.executable, "-m", "gemlet", "daemon", "--simulate", *arguments]
        command += ["--config", str(self.folder / "gemlet.toml")]
        with self.log(self.daemons).open("wb") as log:
            return subprocess.Popen(command, env=self.environment(), stdout=subprocess.DEVNULL, stderr=log)

    def log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def logged(self, words: str) -> list[str]:
        """Lines of all daemons with these words."""
        logs = [self.log(n + 1).read_text().splitlines() for n in range(self.daemons)]
        return [line for log in logs for line in log if words in line]

    def answers(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self.status()["daemon"]["pid"] == self.daemon.pid)
        return False

    def take_over(self) -> None:
        """Another daemon takes the place of the one that runs."""
        elder, self.daemon = self.daemon, self.start_daemon("--take-over")
        elder.wait(PATIENCE)
        self.until("the successor answers", self.answers)

    # --- programs ----------------------------------------------------------------------------------------------------

    def start(self, group: str, *, device: int, period_us: int = 0, too_much: int = 0, strict: bool = False) -> None:
        number = len(self.programs)
        said, file = self.folder / f"said-{number}", self.folder / f"words-{number}"
        changes = {"GEMLET_GROUP": group} | ({"GEMLET_STRICT": "1"} if strict else {})
        hook = self.hooks[number % len(self.hooks)] if self.hooks else ""
        if hook:
            changes["LD_PRELOAD"] = hook
        numbers = (device, KERNEL, period_us, HELD, too_much)
        with said.open("wb") as errors:
            process = subprocess.Popen(
                [self.client, *map(str, numbers), file],
                env=self.environment() | self.variables | changes,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        self.programs.append(Program(process, group, said, file, strict, hook))

    def populate(self, groups: int, *, period_us: int) -> None:
        """Full groups, half of whose programs are strict, each on a device; all that saturate are on the first."""
        for group in range(groups):
            device = group % (self.devices - 1) + 1 if self.devices > 1 else 0
            for n in range(MEMBERS):
                self.start(f"g{group}", device=device, period_us=period_us, too_much=TOO_MUCH, strict=n >= MEMBERS // 2)
        for n in range(SATURATING):
            self.start("capped", device=0, strict=n % 2 == 1)
            self.start("open", device=0, strict=n % 2 == 1)
        self.until("everybody is there", self.everybody_is_there)
        for program in self.programs:
            assert program.process.stdin is not None
            program.process.stdin.write(b"\n")
            program.process.stdin.flush()
        self.until("everybody runs", lambda: all(p.words().rounds for p in self.programs))

    def everybody_is_there(self) -> bool:
        """Each program is governed by the daemon that runs, and what it holds is in its ledger."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Programs of which that is not so, what is known of each, and what it said."""
        devices = self.status()["devices"]
        held = {c["pid"]: c["memory"] + c["unledgered"] for d in devices for g in d["groups"] for c in g["clients"]}
        least = (CONTEXT + HELD) << 20
        return [
            f"{p.group} pid={p.process.pid} strict={p.strict} holds {held.get(p.process.pid)} of {least}: "
            f"{p.said.read_text()!r}, {p.process.poll()}"
            for p in self.programs
            if held.get(p.process.pid, 0) < least
        ]

    def get_on(self, rounds: int) -> None:
        """Returns when each program has done so many rounds more."""
        before = [p.words().rounds for p in self.programs]
        self.until(
            f"{rounds} rounds",
            lambda: all(p.words().rounds >= n + rounds for p, n in zip(self.programs, before, strict=True)),
        )

    def used_by(self, group: str) -> int:
        """Device time of its programs so far, in ns."""
        return sum(p.words().rounds for p in self.programs if p.group == group) * KERNEL

    def broken(self) -> list[str]:
        """What programs noticed that they should not have."""
        found = []
        for p in self.programs:
            words = p.words()
            if p.process.poll() is not None:
                found.append(f"{p.group} ended with {p.process.returncode}: {p.said.read_text()}")
            if words.failures:
                found.append(f"{p.group} failed {words.failures} times")
            if words.passed:
                found.append(f"{p.group} was given {words.passed} allocations beyond its limit")
        return found

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                said = "\n".join([*self.missing(), self.log(self.daemons).read_text()[-2000:]])
                raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}\n{said}")
            time.sleep(0.05)
