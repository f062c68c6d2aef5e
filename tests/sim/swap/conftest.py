"""Programs whose memory together does not fit, on a simulated machine; tests/sim/robustness has the machine itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gemlet import paths
from gemlet.errors import GemletError
from tests.compiled import compiled, cuda_include
from tests.sim.robustness.hurt_machine import CONTEXT, Machine, Running, Served, eventually

FOLDER = Path(__file__).parent
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20


@pytest.fixture(scope="session")
def program() -> Path:
    """tests/sim/swap/program.c, compiled against the simulated driver."""
    try:
        driver = Path(paths.sim_dir()) / "libcuda.so.1"
        paths.hook_path()
    except GemletError as error:
        pytest.skip(f"the native parts are not built: {error}")
    options = ("-O2", "-g", f"-isystem{cuda_include()}", driver, "-ldl", "-pthread")
    return compiled("cc", *options, sources=(FOLDER / "program.c",), headers=(FOLDER / "virtual_verbs.h",))


class Program:
    """A running program.c; each method is one of its verbs."""

    def __init__(self, running: Running) -> None:
        self.running = running
        assert running.line() == "ready", running.communicate(timeout=60)

    def tell(self, *words: object) -> None:
        self.running.tell(" ".join(map(str, words)))

    def answer(self) -> str:
        line = self.running.line()
        assert line, ("it ended", self.running.wait(timeout=60), self.running.stderr and self.running.stderr.read())
        return line

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.answer()

    def number(self, *words: object) -> int:
        return int(self.ask(*words))

    def done(self, *words: object) -> None:
        assert self.number(*words) == 0, words


class Swapping:
    """A server on a simulated device with a capacity, and programs on it."""

    def __init__(self, machine: Machine, served: Served) -> None:
        self.machine, self.served, self.server = machine, served, served.server

    def capacity(self, mib: int | None) -> None:
        """``mib`` beside the contexts of two programs."""
        self.server.set_capacity(self.served.uuid, None if mib is None else mib * MIB + 2 * CONTEXT)

    def succeed(self, capacity: int) -> None:
        """Another server takes over."""
        from gemlet import _native

        estate, uuid = self.server.hand_over(), self.served.uuid
        successor = _native.Server()
        successor.add_device(uuid, 0, context_estimate=CONTEXT)
        successor.set_capacity(uuid, capacity * MIB + 2 * CONTEXT)
        for listener in estate["listeners"]:
            successor.inherit_listener(listener["path"], listener["fd"])
            successor.listen(listener["path"])
        for ledger in estate["ledgers"]:
            successor.inherit_ledger(ledger)
        successor.start()
        self.server.leave()
        self.server = successor

    def start(self, group: str, **changes: str) -> Program:
        return Program(self.machine.start(group, **changes))

    def two(self, mib: int, value: int) -> tuple[Program, Program]:
        """Programs of groups a and b, each with an allocation 0 of so much that is filled with ``value``."""
        a, b = self.start("a"), self.start("b")
        for program in (a, b):
            program.done("alloc", 0, mib * MIB)
            program.done("fill", 0, value)
        return a, b

    def uuid(self, device: int, **changes: str) -> bytes:
        return uuid_of(self.machine, device, **changes)

    def device(self) -> dict[str, Any]:
        return next(d for d in self.server.snapshot()["devices"] if d["uuid"] == self.served.uuid)

    def memory(self, program: Program) -> dict[str, Any]:
        """The daemon's view of a program's movable memory."""
        return next(
            c["movable"] or {} for g in self.device()["groups"] for c in g["clients"] if c["pid"] == program.running.pid
        )

    def most(self) -> int:
        """The most MiB that were ever in use on the device at once, beside the contexts of two programs."""
        bytes_ = int(_ask(self.machine, "c.gemletSimMostMemory(0, ctypes.byref(n)); print(n.value)"))
        return (bytes_ - 2 * CONTEXT) // MIB

    def resident(self, program: Program) -> int:
        """MiB on the device."""
        return int(self.memory(program)["resident"]) // MIB

    def away(self, program: Program) -> int:
        memory = self.memory(program)
        return int(memory["bytes"] - memory["resident"]) // MIB


@pytest.fixture
def swapping(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Callable[..., Swapping]]:
    from gemlet import _native

    folder = tmp_path_factory.mktemp("m")
    machine = Machine(folder, program)
    servers: list[Any] = []
    all_made: list[Swapping] = []

    def make(capacity: int | None = None, *, host: int | None = None, **options: Any) -> Swapping:
        uuid = uuid_of(machine, 0)
        server = _native.Server(host_memory=None if host is None else host * MIB, **options)
        server.add_device(uuid, 0, context_estimate=CONTEXT)
        server.listen(machine.socket)
        server.start()
        servers.append(server)
        all_made.append(Swapping(machine, Served(server, machine, uuid)))
        all_made[-1].capacity(capacity)
        return all_made[-1]

    yield make
    for running in machine.started:
        if running.poll() is None:
            running.kill()
        running.communicate()
    for server in (*servers, *(made.server for made in all_made)):
        server.stop()


def uuid_of(machine: Machine, device: int, **changes: str) -> bytes:
    question = f"c.cuInit(0); b = (ctypes.c_ubyte * 16)(); c.cuDeviceGetUuid(b, {device}); print(bytes(b).hex())"
    return bytes.fromhex(_ask(machine, question, **changes))


def _ask(machine: Machine, question: str, **changes: str) -> str:
    """What the simulated driver answers, without the hook."""
    code = f"import ctypes; c = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_ulonglong(); {question}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=machine.environment(None, **changes),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


__all__ = ["MIB", "Program", "Swapping", "eventually"]
