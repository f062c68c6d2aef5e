"""What the server's frontend costs: a no-op model, binary tensors over HTTP/1.1 keep-alive, requests in an open loop.

    .venv/bin/python -m bench.frontend                     5,000 requests/s for 5 s, then overload
    .venv/bin/python -m bench.frontend --rate 8000 --json

The server is pinned to one core and the generator to others (where there are any). A request's time counts from when it
was due, not from when it was sent, so a generator that falls behind makes numbers worse and not better. The model does
nothing, so all of that time is overhead. Overload sends without waiting as fast as it can and counts replies.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = """\
platform: noop
max_batch: 32
slo: {slo}
inputs: [{{name: X, datatype: FP32, shape: [{elements}]}}]
outputs: [{{name: Y, datatype: FP32, shape: [{elements}]}}]
"""
WINDOW = 100
WORKING = """\
def infer(inputs):
    return {"Y": inputs["X"]}
"""


@dataclass
class Connection:
    """A keep-alive connection: which requests are on their way, what has come of the next reply."""

    socket: socket.socket
    due: list[float] = field(default_factory=list)
    buffer: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""


@dataclass
class Outcome:
    sent: int = 0
    answered: int = 0
    refused: int = 0
    other: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    behind: float = 0.0  # seconds that the generator was late at most

    @property
    def lost(self) -> int:
        return self.sent - self.answered - self.refused - self.other

    def percentile(self, q: float) -> float:
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")

    def quiet(self) -> float:
        """The lowest median of any WINDOW replies in a row: what a machine with other work shows at its best."""
        windows = [
            sorted(self.latencies[at : at + WINDOW]) for at in range(0, len(self.latencies) - WINDOW + 1, WINDOW)
        ]
        return 1000 * min((window[WINDOW // 2] for window in windows), default=float("nan"))

    def document(self) -> dict[str, float]:
        return {
            "sent": self.sent, "answered": self.answered, "refused": self.refused, "other": self.other,
            "lost": self.lost, "rate": round(self.answered / self.seconds, 1), "p50_ms": round(self.percentile(0.5), 4),
            "p50_quiet_ms": round(self.quiet(), 4),
            "p90_ms": round(self.percentile(0.9), 4), "p99_ms": round(self.percentile(0.99), 4),
            "generator_behind_ms": round(1000 * self.behind, 3),
        }  # fmt: skip


def request(model: str, elements: int) -> bytes:
    header = json.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "X",
                    "datatype": "FP32",
                    "shape": [1, elements],
                    "parameters": {"binary_data_size": 4 * elements},
                }
            ],
        }
    ).encode()
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(header) + 4 * elements}\r\n\r\n"
    ).encode() + header + bytes(4 * elements)  # fmt: skip


class Generator:
    """Sends at given times over some connections and reads replies; polls without sleeping."""

    def __init__(self, address: tuple[str, int], connections: int, message: bytes) -> None:
        self._message = message
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self.outcome = Outcome()
        for _ in range(connections):
            opened = socket.create_connection(address)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setblocking(False)
            self._connections[opened.fileno()] = Connection(opened)
            self._poll.register(opened, select.EPOLLIN)

    def open_loop(self, rate: float, seconds: float) -> Outcome:
        """Evenly spaced requests; replies are waited for as long as they take, up to 10 s after the last."""
        outcome, total = self.outcome, int(rate * seconds)
        order = list(self._connections.values())
        began = time.perf_counter() + 0.01
        while outcome.sent < total:
            now = time.perf_counter()
            while outcome.sent < total and began + outcome.sent / rate <= now:
                due = began + outcome.sent / rate
                outcome.behind = max(outcome.behind, now - due)
                self._send(order[outcome.sent % len(order)], due)
            self._receive(0)
        self._rest()
        outcome.seconds = total / rate
        return outcome

    def flood(self, seconds: float, pipelined: int) -> Outcome:
        """As many requests as every connection takes, ``pipelined`` of each on their way at any time."""
        outcome = self.outcome
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            for connection in self._connections.values():
                while len(connection.due) < pipelined and not connection.unsent:
                    self._send(connection, now)
            self._receive(0.001)
        self._rest()
        outcome.seconds = time.perf_counter() - began
        return outcome

    def _send(self, connection: Connection, due: float) -> None:
        connection.due.append(due)
        self.outcome.sent += 1
        if connection.unsent:
            connection.unsent += self._message
            return
        self._write(connection, self._message)

    def _write(self, connection: Connection, data: bytes) -> None:
        try:
            count = connection.socket.send(data)
        except BlockingIOError:
            count = 0
        connection.unsent = data[count:]
        if count < len(data):
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _receive(self, timeout: float) -> None:
        for descriptor, events in self._poll.poll(timeout):
            connection = self._connections[descriptor]
            if events & select.EPOLLOUT:
                data, connection.unsent = connection.unsent, b""
                self._poll.modify(connection.socket, select.EPOLLIN)
                self._write(connection, data)
            if events & select.EPOLLIN:
                connection.buffer += connection.socket.recv(1 << 20)
                self._replies(connection)

    def _replies(self, connection: Connection) -> None:
        buffer, now = connection.buffer, time.perf_counter()
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            at = buffer.find(b"Content-Length: ")  # ours; Inference-Header-Content-Length comes after it
            length = int(buffer[at + 16 : buffer.find(b"\r\n", at)])
            if len(buffer) < end + 4 + length:
                return
            status = bytes(buffer[9:12])
            del buffer[: end + 4 + length]
            due = connection.due.pop(0)
            if status == b"200":
                self.outcome.answered += 1
                self.outcome.latencies.append(now - due)
            elif status in {b"503", b"504"}:
                self.outcome.refused += 1
            else:
                self.outcome.other += 1

    def _rest(self) -> None:
        limit = time.perf_counter() + 10
        while any(each.due for each in self._connections.values()) and time.perf_counter() < limit:
            self._receive(0.01)


def cores() -> tuple[set[int], set[int]]:
    """One core for the server, the others for the generator."""
    there = sorted(os.sched_getaffinity(0))
    return {there[-1]}, set(there[:-1]) or {there[-1]}


def start(folder: Path, slo: str, elements: int, core: set[int]) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    for name, config in (("echo", CONFIG), ("process", CONFIG.replace("noop", "python"))):
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "config.yaml").write_text(config.format(slo=slo, elements=elements))
    (folder / "process" / "1" / "model.py").write_text(WORKING)
    os.sched_setaffinity(0, core)  # which the server inherits; the generator moves on
    process = subprocess.Popen(
        [sys.executable, "-m", "gemlet.cli.main", "serve", str(folder), "--executor", "cpu",
         "--http-port", "0", "--grpc-port", "none", "-o", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    host, _, port = json.loads(process.stdout.readline())["http"].rpartition(":")
    return process, (host, int(port))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--elements", type=int, default=256, help="FP32 values of a request")
    parser.add_argument("--slo", default="1s")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    server_core, generator_cores = cores()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        process, address = start(Path(folder), arguments.slo, arguments.elements, server_core)
        try:
            os.sched_setaffinity(0, generator_cores)
            for name, model, rate in (
                ("warm-up", "echo", arguments.rate / 5),
                ("in the server", "echo", arguments.rate),
                ("through an executor", "process", arguments.rate / 5),
            ):
                message = request(model, arguments.elements)
                before = cpu_seconds(process.pid)
                outcome = Generator(address, arguments.connections, message).open_loop(rate, arguments.seconds)
                used = (cpu_seconds(process.pid) - before) / outcome.sent
                results[name] = {"wanted": rate} | outcome.document() | {"server_cpu_us": round(1e6 * used, 1)}
            message = request("echo", arguments.elements)
            results["overload"] = Generator(address, 64, message).flood(arguments.seconds, 32).document()
            message = request("process", arguments.elements)
            results["overload of an executor"] = Generator(address, 64, message).flood(arguments.seconds, 32).document()
        finally:
            process.terminate()
            process.wait()
    del results["warm-up"]
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    shared = " (server and generator share a core)" if server_core == generator_cores else ""
    print(f"{4 * arguments.elements} bytes a request and a reply, {arguments.connections} connections{shared}\n")
    for name, values in results.items():
        print(f"{name}:")
        for key, value in values.items():
            print(f"  {key:22}{value:>12}")


if __name__ == "__main__":
    main()
