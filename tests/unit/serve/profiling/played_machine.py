"""A device for `gemlet profile` without a GPU: models run on the host, each with the code of its ``model.py``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.serve.execution.model_file import beside, imported
from gemlet.serve.profiles.profile import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.models.specification import ModelSpec


class PlayedMachine:
    groups = 2
    device = Device(name="Played", sms=16, memory_mib=1000.0, groups=2)

    def stressor(self, resource: str) -> float:
        return 2.0

    def bench(self, spec: ModelSpec) -> PlayedBench:
        return PlayedBench(spec)


class PlayedBench:
    weights_mib = 1.0
    activation_mib = 1.0

    def __init__(self, spec: ModelSpec) -> None:
        file = Path(spec.directory, str(spec.version), "model.py")
        with beside(file.parent):
            self._infer: Any = imported(spec, file).load(spec)

    def prepare(self, groups: int, batches: Sequence[int]) -> None:
        pass

    def once(self, groups: int, batch: int) -> float:
        begin = time.perf_counter()
        self._infer(groups, batch)
        return 1000 * (time.perf_counter() - begin) + 0.01

    def probe(self, groups: int, batch: int, resource: str) -> tuple[float, float]:
        return 1.25, 1.5

    def close(self) -> None:
        close = getattr(self._infer, "close", None)
        if close is not None:
            close()


def create(index: int) -> PlayedMachine:
    return PlayedMachine()
