"""A simulated machine, programs on it that can be hurt, and the server they share. conftest.py has the fixtures."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemlet import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
CONTEXT = 500 * MIB  # what the simulated H200 takes for one
PATIENCE = 60.0  # seconds, for what hangs: a busy machine takes many times as long as an idle one


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What ``condition`` returns as soon as it is true. Fails after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        if result := condition():
            return result
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


class Running(subprocess.Popen[str]):
    """A program with its progress: rounds done and when the last one was."""

    progress_file: Path | None = None

    def progress(self) -> tuple[int, float]:
        try:
            assert self.progress_file is not None
            rounds, at = struct.unpack("=QQ", self.progress_file.read_bytes())
        except (OSError, struct.error):
            return 0, 0.0
        return rounds, at / 1e9

    def rounds(self) -> int:
        return self.progress()[0]

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def tell(self, text: str) -> None:
        assert self.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; the caller may read its exit code
            self.stdin.write(text + "\n")
            self.stdin.flush()

    def end(self, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """Exit code and output; fails if it hangs."""
        out, err = self.communicate(timeout=seconds)
        return self.returncode, out, err


@dataclass
class Machine:
    """A simulated machine of its own and the programs on it."""

    folder: Path
    program: Path
    started: list[Running] = field(default_factory=list)

    @property
    def socket(self) -> str:
        return str(self.folder / "s")

    def environment(self, group: str | None, **changes: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        kept |= {"LD_LIBRARY_PATH": paths.sim_dir(), "GEMLET_SIM_DIR": str(self.folder / "machine")}
        if group is not None:
            # What is preloaded into this process, such as a sanitizer's runtime, is into its programs, too.
            preload = paths.prepended(paths.hook_path(), os.environ.get("LD_PRELOAD", ""))
            kept |= {"LD_PRELOAD": preload, "GEMLET_SOCKET": self.socket, "GEMLET_GROUP": group}
        return kept | changes

    def start(self, group: str | None, *arguments: object, command: str | None = None, **changes: str) -> Running:
        """Starts a program in a group; None runs it without the hook."""
        file = self.folder / f"progress-{len(self.started)}"
        running = Running(
            [command or str(self.program), *map(str, arguments)],
            env=self.environment(group, PROGRESS=str(file), **changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.progress_file = file
        self.started.append(running)
        return running

    def run(self, group: str | None, *arguments: object, **changes: str) -> str:
        """Runs a program, expects success, and returns what it printed."""
        code, out, err = self.start(group, *arguments, **changes).end()
        assert code == 0, (arguments, code, out, err)
        return out

    def sampler(self) -> Callable[[], tuple[int, int]]:
        """Starts to watch the device's memory; the result ends it: (most, last) bytes in use, contexts included."""
        sampling = self.start(None, "sample")
        assert sampling.line() == "ready"

        def stop() -> tuple[int, int]:
            _, out, _ = sampling.end()
            most, last = map(int, out.split())
            return most, last

        return stop


@dataclass
class Served:
    """The server in this process."""

    server: Any
    machine: Machine
    uuid: bytes

    def group(self, name: str) -> dict[str, Any]:
        return next((g for d in self.server.snapshot()["devices"] for g in d["groups"] if g["name"] == name), {})

    def used(self, group: str) -> int:
        """Bytes in the books of a group; 0 once it is gone."""
        return int(self.group(group).get("memory_used", 0))

    def time(self, group: str) -> float:
        """Seconds of device time that a group was charged for."""
        return float(self.group(group)["used_ns"]) / 1e9

    def clients(self) -> list[dict[str, Any]]:
        return [c for d in self.server.snapshot()["devices"] for g in d["groups"] for c in g["clients"]]


@contextlib.contextmanager
def serving(machine: Machine, **device: Any) -> Iterator[Served]:
    """A server in this process for the machine's device, of which it knows ``device``; its programs end with it."""
    from gemlet import _native
    from tests.unit.server.wire import end_all

    uuid = bytes.fromhex(machine.run(None, "uuid"))
    server = _native.Server()
    server.add_device(uuid, 0, **device)
    server.listen(machine.socket)
    server.start()
    yield Served(server, machine, uuid)
    end_all()
    for running in machine.started:
        if running.poll() is None:
            running.kill()
            running.wait()
    server.stop()
