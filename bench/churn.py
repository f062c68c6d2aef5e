"""What neighbours lose while models come, go and fail on one server: `make churn`.

python -m bench.churn [--seconds 300] [-o RESULT.json]

Starts `gemlet serve` on the CPU with one executor for all models, and does at the same time, again and again:

  neighbours  clients of two good models, one request after another, each reply checked
  churn       versions of a model are added and removed, the model is unloaded and loaded, its configuration is broken
  cancels     requests whose client goes at once or a moment later
  bad models  one ends its process, one never answers, one raises for some rows; others cannot be loaded, or end their
              process while they are

Verdicts: no reply is wrong (the value is that of the version it names), no request of a neighbour is lost but what was
in flight when an executor ended, everything asked for is answered, and the server serves all good models afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arguments import output, positive
from bench.quantiles import quantile
from bench.report import end
from bench.serve_abuse import answer, request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CLIENTS = 2  # of each neighbour: what may be in flight
NEIGHBOURS = {"plus": "X + 1", "twice": "X * 2"}
HANG_S = 2.0
BETWEEN_S = 3.0  # bad models: each ends the executor of all, which has to start again
ROW = "inputs: [{name: X, datatype: FP32, shape: [1]}]\noutputs: [{name: Y, datatype: FP32, shape: [1]}]\n"
CONFIG = f"max_batch: 8\nslo: 100s\n{ROW}"
FORMULA = "def infer(inputs):\n    X = inputs['X']\n    return {'Y': %s}\n"
BAD = {
    "deadly": "import os\ndef infer(inputs):\n    os._exit(9)\n",
    "stuck": "import time\ndef infer(inputs):\n    time.sleep(600)\n",
    "picky": "def infer(inputs):\n    if (inputs['X'] < 0).any():\n        raise ValueError('a negative row')\n"
    "    return {'Y': inputs['X'] + 3}\n",
    "slow": "import time\ndef infer(inputs):\n    time.sleep(0.02)\n    return {'Y': inputs['X']}\n",
}
UNLOADABLE = {
    "fatal": (CONFIG, "import os\nos._exit(9)\n"),
    "broken": (CONFIG, "def infer(inputs:\n"),
    "nameless": ("max_batch: 8\n", "def infer(inputs):\n    return {}\n"),
}
AGAIN_S = 120.0
VERSION = 1000.0  # version v of the model that changes answers x + 1000 v


def write(repository: Path, name: str, config: str, code: str, version: int = 1) -> None:
    folder = repository / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(code)
    (repository / name / "config.yaml").write_text(config)


def write_version(repository: Path, version: int) -> None:
    write(repository, "changing", CONFIG, FORMULA % f"X + {VERSION * version}", version)


def write_repository(repository: Path) -> None:
    for name, formula in NEIGHBOURS.items():
        write(repository, name, CONFIG, FORMULA % formula)
    for name, code in BAD.items():
        write(repository, name, CONFIG, code)
    write_version(repository, 1)


class Asking:
    """A connection of its own for each question; what came is counted by model and status."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.refusals: Counter[str] = Counter()  # of loads; numbers in them are replaced by #

    async def infer(self, model: str, x: float, expected: Callable[[float, int], float] | None) -> int:
        """The status; a reply that is not as ``expected`` of x and the version it names is kept as wrong."""
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [x]}]}).encode()
        status, told = await self._ask(request(model, body))
        self.counts[f"{model} {status}"] += 1
        if status == 200 and expected is not None:
            reply = json.loads(told)
            (y,) = reply["outputs"][0]["data"]
            if reply["model_name"] != model or y != expected(x, int(reply["model_version"])):
                self.wrong.append(f"{model}: {x} became {y} by {reply['model_name']} {reply['model_version']}")
        return status

    async def post(self, path: str) -> int:
        status, told = await self._ask(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        self.counts[f"{path.rpartition('/')[2]} {status}"] += 1
        if status != 200:
            self.refusals[re.sub(r"\S*/|\d+", "#", json.loads(told)["error"])[:200]] += 1
        return status

    async def load(self, model: str) -> int:
        return await self.post(f"/v2/repository/models/{model}/load")

    async def unload(self, model: str) -> int:
        return await self.post(f"/v2/repository/models/{model}/unload")

    async def get(self, path: str) -> bytes:
        return (await self._ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))[1]

    async def cancel(self, model: str, after_s: float) -> None:
        body = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}'
        _, writer = await asyncio.open_connection(*self._address)
        writer.write(request(model, body))
        await asyncio.sleep(after_s)
        writer.transport.abort()
        self.counts[f"{model} cancelled"] += 1

    async def _ask(self, whole: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(whole)
            return await answer(reader, AGAIN_S)
        finally:
            writer.transport.abort()


class Neighbour:
    """A client of a good model. ``lost``: when it had no reply, and what it had instead."""

    def __init__(self, asking: Asking, model: str) -> None:
        self._asking = asking
        self._model = model
        self.took_ms: list[float] = []
        self.lost: list[str] = []

    async def run(self, going: Callable[[], bool]) -> None:
        right = {"plus": lambda x, _: x + 1, "twice": lambda x, _: x * 2}[self._model]
        while going():
            began = time.perf_counter()
            try:
                status = await self._asking.infer(self._model, float(random.randrange(1000)), right)
            except (OSError, EOFError, TimeoutError) as error:
                self.lost.append(type(error).__name__)
            else:
                if status == 200:
                    self.took_ms.append(1000 * (time.perf_counter() - began))
                else:
                    self.lost.append(str(status))
            await asyncio.sleep(0.02)


async def churn(asking: Asking, repository: Path, going: Callable[[], bool]) -> None:
    version = 1
    while going():
        for _ in range(3):
            version += 1
            write_version(repository, version)
            loading = asyncio.create_task(asking.load("changing"))
            while not loading.done():  # also while it changes
                await asking.infer("changing", 5.0, lambda x, v: x + VERSION * v)
                await asyncio.sleep(0.01)
        shutil.rmtree(repository / "changing" / str(version - 2), ignore_errors=True)
        await asking.load("changing")
        (repository / "changing/config.yaml").write_text("max_batch: many\n")
        await asking.load("changing")
        await asking.infer("changing", 6.0, lambda x, v: x + VERSION * v)
        await asking.unload("changing")
        await asking.infer("changing", 7.0, lambda x, v: x + VERSION * v)
        for old in (repository / "changing").iterdir():
            if old.name.isdigit() and int(old.name) < version:
                shutil.rmtree(old, ignore_errors=True)
        write_version(repository, version)
        await asking.load("changing")


async def cancels(asking: Asking, going: Callable[[], bool]) -> None:
    while going():
        after = (0.0, 0.005, 0.03)
        await asyncio.gather(*(asking.cancel(model, s) for s in after for model in ("slow", *NEIGHBOURS)))
        await asking.infer("slow", 4.0, lambda x, _: x)
        await asyncio.sleep(0.1)


async def bad_models(asking: Asking, repository: Path, going: Callable[[], bool]) -> None:
    for name, (config, code) in UNLOADABLE.items():
        write(repository, name, config, code)
    while going():
        rows = asyncio.gather(*(asking.infer("picky", x, lambda x, _: x + 3) for x in (1.0, -1.0, 2.0, 3.0)))
        await asyncio.gather(rows, asking.infer("deadly", 1.0, None))
        await asyncio.sleep(BETWEEN_S)
        for name in UNLOADABLE:
            await asking.load(name)
        await asyncio.sleep(BETWEEN_S)
        await asking.infer("stuck", 1.0, None)
        await asyncio.sleep(BETWEEN_S)


async def served_again(asking: Asking) -> bool:
    """Whether all good models answer, at the latest a while after everybody stopped."""
    models = (*NEIGHBOURS, "changing", "picky", "slow")
    end = time.monotonic() + AGAIN_S
    while time.monotonic() < end:
        await asking.load("changing")  # the executor may have ended while it was loaded last
        if [await asking.infer(model, 1.0, None) for model in models] == [200] * len(models):
            return True
        await asyncio.sleep(0.5)
    return False


async def deaths(asking: Asking) -> int:
    """How many executors ended so far."""
    text = (await asking.get("/metrics")).decode()
    found = re.findall(r"^gemlet_serve_executor_restarts_total(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


async def run(document: dict[str, Any], repository: Path, seconds: float) -> dict[str, Any]:
    """What a server, given by the line it started with, comes to."""
    host, _, port = document["http"].rpartition(":")
    asking = Asking((host, int(port)))
    neighbours = [Neighbour(asking, model) for model in NEIGHBOURS for _ in range(CLIENTS)]
    end = time.monotonic() + seconds
    failed: list[str] = []

    def going() -> bool:
        return time.monotonic() < end

    async def whole(part: Awaitable[None]) -> None:
        try:
            await part
        except (OSError, EOFError, TimeoutError) as error:  # not answered
            failed.append(f"{type(error).__name__}: {error}")

    parts = [neighbour.run(going) for neighbour in neighbours]
    parts += [churn(asking, repository, going), cancels(asking, going), bad_models(asking, repository, going)]
    await asyncio.gather(*(whole(part) for part in parts))
    took = sorted(ms for neighbour in neighbours for ms in neighbour.took_ms)
    again = await served_again(asking)
    return {
        "seconds": seconds,
        "executors_ended": await deaths(asking),
        "counts": dict(sorted(asking.counts.items())),
        "refused_loads": dict(asking.refusals.most_common()),
        "wrong": asking.wrong,
        "unanswered": failed,
        "neighbours": {
            "answered": len(took),
            "lost": [reason for neighbour in neighbours for reason in neighbour.lost],
            "p50_ms": quantile(took, 0.5),
            "p99_ms": quantile(took, 0.99),
            "max_ms": took[-1],
        },
        "served_again": again,
    }


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    in_flight = CLIENTS * len(NEIGHBOURS)
    return {
        "no reply wrong": not found["wrong"],
        "everything answered": not found["unanswered"],
        "neighbours lose what was in flight at most": len(found["neighbours"]["lost"])
        <= in_flight * found["executors_ended"],
        "all served afterwards": found["served_again"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=300.0)
    parser.add_argument("-o", "--output", type=output, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        repository = Path(folder, "models")
        write_repository(repository)
        command = [
            sys.executable,
            "-m",
            "gemlet",
            "serve",
            str(repository),
            "--executor",
            "cpu",
            "--hang",
            str(HANG_S),
        ]
        command += ["--http-port", "0", "--grpc-port", "none", "-o", "json"]
        log = ends.enter_context(Path(folder, "log").open("w"))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                if not line:
                    sys.exit(f"error: the server did not start:\n{Path(folder, 'log').read_text()}")
                found = asyncio.run(run(json.loads(line), repository, arguments.seconds))
            finally:
                server.terminate()
    return end(found, verdicts(found), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
