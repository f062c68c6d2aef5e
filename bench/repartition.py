"""How long gpu-lets are interrupted when a device is divided anew: green contexts, live requests.

python -m bench.repartition [--quick] [-o RESULT.json]

Three gpu-lets answer batches without a pause, each in a thread, while the device is divided A, B, A, B, ... The first
time each division needs graphs that are not captured yet (cold), later ones do not (warm).

call    how long partition() takes; the aim is below 50 ms when warm. gpulet's repartitions take 10-15 s
switch  the part of it that replaces the gpu-lets
gap     the longest time between two answers of a gpu-let around the call, less the usual time of an answer there
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gemlet.errors import GemletError
from gemlet.monitor.tables import table
from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone
from gemlet.serve.execution.backends import green
from gemlet.serve.execution.process_settings import SWITCH_INTERVAL
from gemlet.serve.models import built_in

MODELS = {"a": "resnet50", "b": "bert", "c": "googlenet"}
DIVISIONS = ({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 0.25, "b": 0.5, "c": 0.25})
BATCH = 8


class Client(threading.Thread):
    """Keeps one gpu-let busy and writes down when it answered."""

    def __init__(self, backend: green.GreenBackend, gpu_let: str) -> None:
        super().__init__(daemon=True)
        entry = built_in.BUILT_IN[MODELS[gpu_let]]
        kinds = {"UINT8": np.uint8, "INT64": np.int64, "FP32": np.float32}
        self.inputs = {t.name: np.zeros((BATCH, *t.shape), kinds[t.datatype]) for t in entry.inputs}
        self.backend, self.gpu_let, self.end = backend, gpu_let, False
        self.answers: list[float] = []
        self.error: GemletError | None = None

    def run(self) -> None:
        while not self.end:
            try:
                self.backend.run(self.gpu_let, MODELS[self.gpu_let], self.inputs, BATCH)
            except GpuLetGone:
                time.sleep(0.0002)
                continue
            except GemletError as error:
                self.error = error
                return
            self.answers.append(time.perf_counter())


def specs(division: dict[str, float]) -> list[GpuLet]:
    return [GpuLet(name=gpu_let, sm=sm, models={MODELS[gpu_let]: BATCH}) for gpu_let, sm in division.items()]


def gap(answers: list[float], begin: float, end: float) -> tuple[float, float]:
    """(longest, usual) ms between answers from just before ``begin`` to just after ``end``."""
    near = [b - a for a, b in pairwise(answers) if b > begin and a < end + 0.02]
    usual = [b - a for a, b in pairwise(answers) if end + 0.02 < b]
    return 1000 * max(near, default=0.0), 1000 * median(usual) if usual else 0.0


def measure(times: int) -> list[dict[str, Any]]:
    sys.setswitchinterval(SWITCH_INTERVAL)  # as the process that serves does
    backend = green.create(BackendOptions())
    for model in MODELS.values():
        backend.load(built_in.spec(model))
    rows: list[dict[str, Any]] = []
    backend.partition(specs(DIVISIONS[1]))
    clients = [Client(backend, gpu_let) for gpu_let in MODELS]
    for client in clients:
        client.start()
    time.sleep(0.3)
    for number in range(times):
        for client in clients:
            client.answers.clear()
        time.sleep(0.1)
        begin = time.perf_counter()
        backend.partition(specs(DIVISIONS[number % 2]))
        end = time.perf_counter()
        time.sleep(0.2)
        gaps = {client.gpu_let: gap(list(client.answers), begin, end) for client in clients}
        rows.append(
            {
                "cold": number == 0,  # division 1 was there from the beginning
                "call_ms": round(1000 * (end - begin), 3),
                "switch_ms": round(backend.switched_ms, 4),
                "gap_ms": round(max(longest - usual for longest, usual in gaps.values()), 3),
            }
        )
    for client in clients:
        client.end = True
    for client in clients:
        client.join(5)
        if client.error is not None:
            raise client.error
    backend.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    o = parser.parse_args()
    rows = measure(6 if o.quick else 30)
    if o.output:
        o.output.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    lines = []
    for name, chosen in (("cold", rows[:1]), ("warm", rows[1:])):
        for what in ("call_ms", "switch_ms", "gap_ms"):
            values = [row[what] for row in chosen]
            lines.append((name, what.removesuffix("_ms"), f"{median(values):.3f} ms", f"{max(values):.3f} ms"))
    print("\n".join(table(("", "", "median", "longest"), lines, right=frozenset({"median", "longest"}))))


if __name__ == "__main__":
    main()
