"""What clients who mean harm take from `gemlet serve`, and from the clients beside them: memory, and time.

python -m bench.serve_abuse [--seconds 300] [--rounds N] [--only KIND]... [-o RESULT.json]

Starts the server on a repository of two models, one in the server itself and one in an executor on the CPU. Good
clients ask one request after another, for a fifth of the time alone, then beside one kind of abuse after another, and
for the second half beside all of them: uploads that are broken off, gzip bodies that inflate a thousandfold, bodies
that never end, headers that never end, connections that nobody uses, answers that nobody reads, large JSON, and
messages of gRPC that are large to read. With `--rounds` each abuse comes so many times in place of the time; `--only`
leaves out the other kinds. Verdicts: every good request is answered, the server's resident memory afterwards is within
10 % of before, and the p99 of good requests within twice what it was alone.

longest stall   of the server's event loop (bench.watched_server): how long it did not come around, and how much of that
                its own thread computed, where it was; other work on the machine makes only the first longer
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil

from bench.arguments import count, output, positive
from bench.quantiles import quantile
from bench.report import end, grid
from gemlet.inference_protocol import inference_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = 1 << 20
LARGEST = 64 * MIB
GOOD = 4  # clients
ALONE, TOGETHER = 0.2, 0.5  # parts of the time in which they are alone, and beside all kinds of abuse
ANSWER_S = 60.0
SEND_S = 3.0
SETTLE_S = 15.0  # for the server to notice that clients are gone
GROWTH = 1.10
SLOWER = 2.0
NICE = 10
KINDS = {  # of abuse, and the methods of Abuse
    "uploads broken off": "broken_off",
    "gzip": "gzip",
    "bodies that never end": "unfinished",
    "headers that never end": "headers",
    "connections": "connections",
    "answers not read": "unread",
    "large JSON": "large_json",
    "gRPC contents": "contents",
    "gRPC broken off": "grpc_broken_off",
}
FLOAT = "{name: %s, datatype: FP32, shape: [-1]}"
CONFIG = f"max_batch: 8\nslo: 60s\ninputs: [{FLOAT % 'X'}]\noutputs: [{FLOAT % 'Y'}]\n"
MODEL = 'def infer(inputs):\n    return {"Y": inputs["X"] + 1}\n'


def write_repository(folder: Path) -> None:
    for name, platform_, code in (("echo", "noop", ""), ("add", "python", MODEL)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.yaml").write_text(f"platform: {platform_}\n{CONFIG}")
        if code:
            (folder / name / "1" / "model.py").write_text(code)


def request(model: str, body: bytes, length: int | None = None, *headers: str) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def binary(model: str, nbytes: int, *, text: bool = False) -> bytes:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, nbytes // 4], "parameters": {"binary_data_size": nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": not text}}).encode()
    return request(model, head + bytes(nbytes), None, f"Inference-Header-Content-Length: {len(head)}")


class Good:
    """A client that sends a request when the one before was answered, and keeps how long each took."""

    def __init__(self, address: tuple[str, int], model: str) -> None:
        self._address = address
        self._request = binary(model, 4096)
        self.took_ms: list[float] = []
        self.failed: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            while not stop.is_set():
                began = time.perf_counter()
                writer.write(self._request)
                status, _ = await answer(reader)
                self.took_ms.append(1000 * (time.perf_counter() - began))
                if status != 200:
                    self.failed.append(str(status))
                await asyncio.sleep(0.005)
        except (OSError, EOFError) as error:
            self.failed.append(f"{type(error).__name__}: {error}")
        finally:
            writer.close()


async def answer(reader: asyncio.StreamReader, within_s: float = ANSWER_S) -> tuple[int, bytes]:
    """Status and body."""
    async with asyncio.timeout(within_s):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length:"))
        return int(head.split(" ", 2)[1]), await reader.readexactly(int(length.partition(":")[2]))


class Abuse:
    """Each method is one round of one kind; what the server does to it does not matter."""

    def __init__(self, http: tuple[str, int], channel: grpc.aio.Channel) -> None:
        self._http = http
        self._channel = channel
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            kind: getattr(self, name) for kind, name in KINDS.items()
        }
        self._zeros = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,%d],"data":[%s0]}]}'
        self._bomb = gzip.compress(self._zeros % (LARGEST // 2 - 100, b"0," * (LARGEST // 2 - 101)), 9)
        self._list = self._zeros % (2 * MIB, b"0," * (2 * MIB - 1))
        self._packed = b"\x12" + varint(16 * MIB) + b"\x01" * (16 * MIB)  # int_contents, packed

    async def _send(self, *pieces: bytes, hold_s: float = 0.0, read: bool = False) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            reader, writer = await asyncio.open_connection(*self._http)
            try:
                async with asyncio.timeout(ANSWER_S if read else SEND_S):
                    for piece in pieces:
                        writer.write(piece)
                        await writer.drain()
                    if read:
                        await answer(reader)
                await asyncio.sleep(hold_s)
            finally:
                writer.transport.abort()

    async def broken_off(self) -> None:
        await asyncio.gather(*(self._send(request("echo", bytes(20 * MIB), LARGEST)) for _ in range(4)))

    async def gzip(self) -> None:
        await self._send(request("echo", self._bomb, None, "Content-Encoding: gzip"), read=True)

    async def unfinished(self) -> None:
        begun = request("echo", bytes(30 * MIB), LARGEST)
        await asyncio.gather(*(self._send(begun, hold_s=2.0) for _ in range(6)))

    async def headers(self) -> None:
        begun = b"POST /v2/models/echo/infer HTTP/1.1\r\n" + b"A: b\r\n" * 5000
        await asyncio.gather(*(self._send(begun, hold_s=2.0) for _ in range(50)))

    async def connections(self) -> None:
        await asyncio.gather(*(self._send(hold_s=1.0) for _ in range(500)))

    async def unread(self) -> None:
        whole = binary("echo", 8 * MIB)
        await asyncio.gather(*(self._send(whole, whole, whole, hold_s=2.0) for _ in range(6)))

    async def large_json(self) -> None:
        await asyncio.gather(*(self._send(request("echo", self._list), read=True) for _ in range(2)))

    async def _grpc(self, message: bytes, timeout_s: float) -> None:
        call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await call(message, timeout=timeout_s)

    async def contents(self) -> None:
        wanted = messages.ModelInferRequest(model_name="echo")
        tensor = wanted.inputs.add(name="X", datatype="INT32", shape=[1, 16 * MIB])
        tensor.contents.MergeFromString(self._packed)
        await self._grpc(wanted.SerializeToString(), ANSWER_S)

    async def grpc_broken_off(self) -> None:
        wanted = messages.ModelInferRequest(model_name="echo")
        wanted.inputs.add(name="X", datatype="FP32", shape=[1, 8 * MIB])
        wanted.raw_input_contents.append(bytes(32 * MIB))
        await self._grpc(wanted.SerializeToString(), 0.02)


def varint(number: int) -> bytes:
    written = b""
    while number > 0x7F:
        written += bytes([number & 0x7F | 0x80])
        number >>= 7
    return written + bytes([number])


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


async def attack(
    document: dict[str, Any], seconds: float, rounds: int | None, kinds: tuple[str, ...]
) -> dict[str, int]:
    """These kinds of abuse at once, again and again; how often each came. In a process of its own."""
    host, _, port = document["http"].rpartition(":")
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(document["grpc"], options=options) as channel:
        abuse = Abuse((host, int(port)), channel)
        counts = dict.fromkeys(kinds, 0)

        async def repeat(kind: str) -> None:
            end = time.monotonic() + seconds
            while counts[kind] < rounds if rounds is not None else time.monotonic() < end:
                await abuse.kinds[kind]()
                counts[kind] += 1

        await asyncio.gather(*(repeat(kind) for kind in kinds))
    return counts


def attacked(
    document: dict[str, Any], seconds: float, rounds: int | None, kinds: tuple[str, ...]
) -> tuple[dict[str, int], float]:
    """What attack() gives, and when it began."""
    if rounds is None:  # else nothing is measured, and on a busy machine it would not get on
        os.nice(NICE - os.nice(0))  # those who are measured share the machine with it
    began = time.monotonic()
    return asyncio.run(attack(document, seconds, rounds, kinds)), began


async def run(
    document: dict[str, Any], seconds: float, rounds: int | None, kinds: tuple[str, ...], stalls: Path
) -> dict[str, Any]:
    """What a server, given by the line it started with, comes to."""
    host, _, port = document["http"].rpartition(":")
    http = host, int(port)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # Once before: processes start, allocators and arenas take what they take.
        await loop.run_in_executor(pool, attacked, document, 0.0, 1, kinds)
        await asyncio.sleep(1.0)
        began = time.monotonic()
        alone = told(await good_clients(http, asyncio.sleep(ALONE * seconds)))
        alone |= longest(stalls, began)
        before = highest = resident(document["pid"])

        async def beside(kinds: tuple[str, ...], seconds: float) -> dict[str, Any]:
            work = loop.run_in_executor(pool, attacked, document, seconds, rounds, kinds)

            async def watch() -> None:
                nonlocal highest
                while not work.done():
                    highest = max(highest, resident(document["pid"]))
                    await asyncio.sleep(0.05)

            watching = asyncio.create_task(watch())
            found = told(await good_clients(http, work))
            await watching
            counts, began = work.result()
            return found | longest(stalls, began) | {"rounds": counts}

        part = (1 - ALONE - TOGETHER) / len(kinds)
        each = {kind: await beside((kind,), part * seconds) for kind in kinds} if len(kinds) > 1 else {}
        together = await beside(kinds, (TOGETHER if each else 1 - ALONE) * seconds)
    after = await settled(document["pid"], before)
    return {
        "resident": {"before": before, "highest": highest, "after": after, "ratio": after / before},
        "rounds": together.pop("rounds"),
        "alone": alone,
        "each": each,
        "beside": together,
    }


def longest(stalls: Path, since: float) -> dict[str, Any]:
    """The longest stalls of the server's event loop, by the clock and by what it computed."""
    found = [json.loads(line) for line in stalls.read_text().splitlines(keepends=True) if line.endswith("\n")]
    found = [each for each in found if each["at"] >= since]
    if not found:
        return {"stall_ms": 0.0, "computed_ms": 0.0, "computed_at": []}
    computed = max(found, key=lambda each: float(each["cpu_ms"]))
    stall_ms = max(each["ms"] for each in found)
    return {"stall_ms": stall_ms, "computed_ms": computed["cpu_ms"], "computed_at": computed["where"]}


async def good_clients(http: tuple[str, int], meanwhile: Awaitable[Any]) -> list[Good]:
    clients = [Good(http, ("echo", "add")[number % 2]) for number in range(GOOD)]
    stop = asyncio.Event()
    running = [asyncio.create_task(client.run(stop)) for client in clients]
    await meanwhile
    stop.set()
    await asyncio.gather(*running)
    return clients


async def settled(pid: int, before: int) -> int:
    """Resident memory when the server has noticed that everybody is gone."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and resident(pid) > allowed(before):  # noqa: ASYNC110  another process's
        await asyncio.sleep(0.2)
    return resident(pid)


def allowed(before: int) -> float:
    return GROWTH * before


def told(clients: list[Good]) -> dict[str, Any]:
    took = sorted(ms for client in clients for ms in client.took_ms)
    return {
        "requests": len(took),
        "failed": [failure for client in clients for failure in client.failed],
        "p50_ms": quantile(took, 0.5),
        "p99_ms": quantile(took, 0.99),
        "max_ms": took[-1],
    }


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    memory = found["resident"]
    phases = [found["alone"], *found["each"].values(), found["beside"]]
    return {
        "every good request answered": not any(phase["failed"] for phase in phases),
        "memory afterwards": memory["after"] <= allowed(memory["before"]),
        "p99 beside": found["beside"]["p99_ms"] <= SLOWER * found["alone"]["p99_ms"],
    }


def lines(found: dict[str, Any]) -> str:
    """A line for each kind of abuse."""
    head = ["beside", "requests", "p50 ms", "p99 ms", "max ms", "longest stall ms", "of it computed", "at"]
    phases = {"nothing": found["alone"], **found["each"], "all": found["beside"]}
    columns = ("p50_ms", "p99_ms", "max_ms", "stall_ms", "computed_ms")
    rows = [
        [name, str(phase["requests"]), *(f"{phase[column]:.2f}" for column in columns), *phase["computed_at"][-1:]]
        for name, phase in phases.items()
    ]
    return grid(head, [row + [""] * (len(head) - len(row)) for row in rows], left=(0, -1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=300.0)
    parser.add_argument("--rounds", type=count, help="of each abuse, in place of the time")
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("-o", "--output", type=output, metavar="FILE")
    arguments = parser.parse_args()
    kinds = tuple(arguments.only or KINDS)
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder, "models"))
        stalls = Path(folder, "stalls")
        command = [sys.executable, "-m", "bench.watched_server", str(stalls), "serve", f"{folder}/models"]
        command += ["--executor", "cpu", "--http-port", "0", "--grpc-port", "0", "-o", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                document = json.loads(server.stdout.readline())
                found = asyncio.run(run(document, arguments.seconds, arguments.rounds, kinds, stalls))
            finally:
                server.terminate()
    status = end(found, verdicts(found), arguments.output)
    print(lines(found))
    return status


if __name__ == "__main__":
    sys.exit(main())
