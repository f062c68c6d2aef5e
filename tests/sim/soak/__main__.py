"""A soak on the simulated machine: hundreds of programs, and everything that goes wrong on a machine, for an hour.

    python -m tests.sim.soak [--seconds 3600] [--clients 500] [--seed N]

Programs are killed and stopped, the daemon is stopped and runs out of descriptors, connections and disk, and its
configuration changes under it, to nonsense now and then. Meanwhile and at the end must hold:

- the ledger of each program says what the driver says that it holds;
- no program runs without a daemon or fails for good, and nothing is left of those that are gone;
- nobody waits longer than twice its fair wait: a round of every program of its device, or a cycle of turns; what the
  machine keeps a process waiting that has nothing to do with gemlet is measured, and added; a program that was stopped
  in its turn may pay for that for 10 s;
- the daemon's memory does not grow.

Prints figures as JSON; exits with 1 if something did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compiled import compiled, cuda_include

DEVICES = 12  # each takes 64 processes
GROUPS = 20
ROUND = 0.001  # seconds of device time in a round of a client
CYCLE = 0.1  # of turns, at most: cycle_max of native/arbiter/arbiter.hpp
SATURATING = 4  # clients without pauses, all on device 0
PATIENCE = 60.0
NONSENSE = ("[groups.g0\n", 'users = ["²"]\n', "[daemon]\nmetrics_port = -1\n", "x = " + "[" * 5000)
DEBT = 10.0  # seconds: debt_max of native/arbiter/arbiter.hpp; so long who was stopped in a turn may wait
STALLS = 4  # wake-ups on the way of one request: the client, the daemon, the device, the client
WARM = 150.0  # seconds: the daemon keeps samples of 120 s, and what it holds grows until then
GROWTH = 1.1  # of the daemon's memory, and
GROWTH_BYTES = 16 << 20
WORDS = struct.Struct("=5Q")


@dataclass
class Client:
    process: subprocess.Popen[bytes]
    device: int
    words: Path
    pays_until: float = 0.0

    def read(self) -> tuple[int, int, int, int, int]:
        """Rounds, when the last one was, longest wait, when the present round began, failures. Times in ns."""
        try:
            rounds, at, longest, began, failures = WORDS.unpack(self.words.read_bytes())
        except (OSError, struct.error):
            return 0, 0, 0, 0, 0
        return rounds, at, longest, began, failures


@dataclass
class Soak:
    """The daemon, its programs and what was seen so far."""

    folder: Path
    dice: random.Random
    wanted: int
    clients: list[Client] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    serial: int = 0
    stall: float = 0.0
    ended: bool = False

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "GEMINI_", "LD_"))}
        kept |= {k: v for k, v in os.environ.items() if k == "GEMLET_LIB_DIR"}
        return kept | {
            "GEMLET_RUNTIME_DIR": str(self.folder),
            "GEMLET_SIM_DEVICES": str(DEVICES),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    def gemlet(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "gemlet", *arguments]
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{arguments}: {done.stderr}")
        return done.stdout

    # --- what is there ---

    def begin(self) -> None:
        self.configure()
        self.daemon = subprocess.Popen(
            [sys.executable, "-m", "gemlet", "daemon", "--simulate", "--config", str(self.folder / "gemlet.toml")],
            env=self.environment(), stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("wb"),
        )  # fmt: skip
        self.until("the daemon answers", self.answers)
        exports = self.gemlet("env", "--simulate", "--group", "g0")
        pairs = (line.removeprefix("export ").split("=", 1) for line in exports.splitlines() if "=" in line)
        self.variables = {name: shlex.split(value)[0] if value else "" for name, value in pairs}
        driver = Path(self.variables["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1"
        options = ("-O1", f"-isystem{cuda_include()}", driver)
        self.program = compiled("cc", *options, sources=(Path(__file__).parent / "client.c",))
        # For NVML in this process.
        os.environ |= {"GEMLET_SIM_DIR": self.variables["GEMLET_SIM_DIR"], "GEMLET_SIM_DEVICES": str(DEVICES)}
        threading.Thread(target=self.measure_stalls, daemon=True).start()

    def answers(self) -> bool:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.gemlet("status", "--simulate", "-o", "json")
            return True
        return False

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.gemlet("status", "--simulate", "-o", "json")))

    def configure(self, more: str = "") -> None:
        groups = "".join(f'[groups.g{n}]\nmin = "2%"\nweight = {self.dice.randrange(1, 4)}\n' for n in range(GROUPS))
        new = self.folder / "gemlet.toml.new"
        new.write_text(groups + more)
        new.rename(self.folder / "gemlet.toml")

    def start(self) -> None:
        self.serial += 1
        saturating = sum(client.device == 0 for client in self.clients) < SATURATING
        device = 0 if saturating else 1 + self.serial % (DEVICES - 1)
        words = self.folder / f"words-{self.serial}"
        period = 0 if saturating else self.dice.randrange(500, 3000)
        group = f"g{self.serial % GROUPS}"
        process = subprocess.Popen(
            [self.program, str(device), str(period), str(self.dice.randrange(1, 64)), words],
            env=self.environment() | self.variables | {"GEMLET_GROUP": group, "GEMLET_STRICT": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(self.folder / "said").open("ab"),
        )  # fmt: skip
        self.clients.append(Client(process, device, words))

    def end(self, client: Client) -> None:
        self.clients.remove(client)
        self.note_waits([client])
        client.process.kill()
        client.process.wait()
        client.words.unlink(missing_ok=True)

    # --- what must hold ---

    def fails(self, what: str) -> None:
        if len(self.broken) < 50:
            self.broken.append(what)

    def until(self, what: str, holds: Any) -> bool:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if holds():
                return True
            time.sleep(0.1)
        self.fails(f"not within {PATIENCE:.0f} s: {what}")
        return False

    def ledgers_are_true(self) -> bool:
        """What each program holds, by the daemon and by the driver."""
        from gemlet.daemon.inventory import NvmlInventory

        if not hasattr(self, "inventory"):
            self.inventory = NvmlInventory(simulated=True)
        documents = self.status()["devices"]
        wrong = []
        for device in documents:
            held = self.inventory.process_memory(device["uuid"])
            for group in device["groups"]:
                for client in group["clients"]:
                    accounted = client["memory"] + client["unledgered"]
                    if held.get(client["pid"], 0) != accounted:
                        wrong.append((client["pid"], accounted, held.get(client["pid"])))
        self.wrong = wrong
        return not wrong

    def everybody_runs(self) -> bool:
        """Every program is governed, and its rounds go on."""
        status = self.status()
        there = {c["pid"] for d in status["devices"] for g in d["groups"] for c in g["clients"]}
        self.missing = [client.process.pid for client in self.clients if client.process.pid not in there]
        return not self.missing

    def note_waits(self, clients: list[Client]) -> None:
        now = time.monotonic_ns()
        for client in clients:
            _, _, longest, began, failures = client.read()
            waited = max(longest, now - began if began else 0) / 1e9
            name = "longest_wait_while_hurt_s" if client.device else "longest_wait_while_hurt_saturating_s"
            self.figures[name] = max(self.figures.get(name, 0.0), waited)
            self.figures["failures"] = self.figures.get("failures", 0) + failures

    def forget_waits(self) -> None:
        for client in self.clients:
            with contextlib.suppress(OSError), client.words.open("r+b") as file:
                file.seek(16)
                file.write(bytes(8))

    def measure_stalls(self) -> None:
        while not self.ended:
            begin = time.monotonic()
            time.sleep(0.001)
            self.stall = max(self.stall, time.monotonic() - begin - 0.001)

    def resident(self) -> int:
        """Bytes of the daemon's own memory: not of the simulated machine, which fills as processes come and go."""
        lines = Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    # --- what goes wrong ---

    def hurt(self) -> str:
        name, harm = self.dice.choice(
            [
                ("kill", self.kill_some),
                ("stop", self.stop_some),
                ("stopped daemon", self.stop_daemon),
                ("full disk", self.fill_disk),
                ("no descriptors", self.take_descriptors),
                ("no connections", self.take_connections),
                ("configuration", self.edit),
            ]
        )
        harm()
        return name

    def kill_some(self) -> None:
        for client in self.dice.sample(self.clients, min(10, len(self.clients))):
            self.end(client)

    def stop_some(self) -> None:
        chosen = self.dice.sample(self.clients, min(20, len(self.clients)))
        for client in chosen:
            client.process.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.random() * 2)
        for client in chosen:
            client.process.send_signal(signal.SIGCONT)
            client.pays_until = time.monotonic() + DEBT

    def stop_daemon(self) -> None:
        self.daemon.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.random() * 3)
        self.daemon.send_signal(signal.SIGCONT)

    def with_limit(self, which: int, value: int, seconds: float) -> None:
        before = resource.prlimit(self.daemon.pid, which)
        resource.prlimit(self.daemon.pid, which, (min(value, before[1]), before[1]))
        time.sleep(seconds)
        resource.prlimit(self.daemon.pid, which, before)

    def fill_disk(self) -> None:
        self.with_limit(resource.RLIMIT_FSIZE, 1 << 14, self.dice.random() * 3)

    def take_descriptors(self) -> None:
        threading.Thread(target=self.start_a_few_later, daemon=True).start()
        self.with_limit(resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{self.daemon.pid}/fd")), 1.5)  # noqa: PTH208

    def start_a_few_later(self) -> None:
        time.sleep(0.3)
        for _ in range(3):
            self.start()

    def take_connections(self) -> None:
        kept = []
        for _ in range(3000):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.settimeout(0.2)
            kept.append(one)
            try:
                one.connect(self.variables["GEMLET_SOCKET"])
            except OSError:
                break
        time.sleep(0.5)
        for one in kept:
            one.close()

    def edit(self) -> None:
        for more in self.dice.sample(NONSENSE, 2):
            self.configure(more)
            time.sleep(0.2)
        self.configure()

    # --- the whole ---

    def run(self, seconds: float) -> bool:
        begin = time.monotonic()
        self.begin()
        while len(self.clients) < self.wanted:
            self.start()
            time.sleep(0.01)
        self.until("everybody runs", self.everybody_runs)
        started = time.monotonic() - begin
        harms: dict[str, int] = {}
        resident = 0
        calm: list[float] = []
        bound = [0.0]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            harm = self.hurt()
            harms[harm] = harms.get(harm, 0) + 1
            for client in [client for client in self.clients if client.process.poll() is not None]:
                self.end(client)  # it was turned away for too long, or its device failed: the next ones must run
                self.figures["ended"] = self.figures.get("ended", 0) + 1
            while len(self.clients) < self.wanted:
                self.start()
            if not self.until(f"everybody runs after: {harm}", self.everybody_runs):
                self.fails(f"not governed: {self.missing[:5]}")
            if not self.until(f"the ledgers are the driver's after: {harm}", self.ledgers_are_true):
                self.fails(f"pid, accounted, held: {self.wrong[:5]}")
            self.check_waits(calm, bound)
            self.figures.setdefault("daemon_mib", []).append(self.resident() >> 20)
            if not resident and time.monotonic() - begin > WARM:
                resident = self.resident()
            self.figures["checks"] = self.figures.get("checks", 0) + 1
        grown = self.resident()
        self.figures["memory_checked"] = bool(resident)
        if resident and grown > resident * GROWTH + GROWTH_BYTES:
            self.fails(f"the daemon's memory grew from {resident >> 20} to {grown >> 20} MiB")
        for client in list(self.clients):
            self.end(client)
        self.until("nothing is left", self.is_empty)
        self.ended = True
        self.figures |= {
            "seconds": round(time.monotonic() - begin),
            "clients": self.wanted,
            "programs": self.serial,
            "all_started_s": round(started, 1),
            "harms": harms,
            "longest_calm_wait_s": round(max(calm, default=0.0), 3),
            "bound_of_it_s": round(bound[0], 3),
            "worst_stall_of_the_machine_s": round(self.stall, 3),
            "broken": self.broken,
        }
        return not self.broken

    def check_waits(self, calm: list[float], bound: list[float]) -> None:
        """For two seconds in which nothing is hurt."""
        self.note_waits(self.clients)
        self.forget_waits()
        stall, self.stall = self.stall, 0.0
        begin = time.monotonic()
        time.sleep(2)
        now = time.monotonic_ns()
        counts = [sum(client.device == device for client in self.clients) for device in range(DEVICES)]
        for client in self.clients:
            _, _, longest, began, _ = client.read()
            waited = max(longest, now - began if began else 0) / 1e9
            limit = 2 * max(counts[client.device] * ROUND, CYCLE) + STALLS * self.stall
            if client.pays_until > begin:
                continue
            calm.append(waited)
            bound[0] = max(bound[0], limit)
            if waited > limit:
                self.fails(f"a client of device {client.device} waited {waited:.3f} s, not {limit:.3f} s")
        self.stall = max(stall, self.stall)

    def is_empty(self) -> bool:
        status = self.status()
        return not status["unmanaged"] and all(
            not group["clients"] and group["memory_used"] == 0 for d in status["devices"] for group in d["groups"]
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemlet-soak-", dir="/dev/shm") as folder:
        soak = Soak(Path(folder), random.Random(options.seed), options.clients)
        try:
            good = soak.run(options.seconds)
        finally:
            soak.ended = True
            for client in soak.clients:
                client.process.kill()
            soak.daemon.send_signal(signal.SIGCONT)
            soak.daemon.terminate()
            soak.daemon.wait(PATIENCE)
            for client in soak.clients:
                client.process.wait()
    print(json.dumps({"simulated": True, "seed": options.seed, **soak.figures}, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
