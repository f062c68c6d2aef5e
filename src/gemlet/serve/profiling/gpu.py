"""The machine of measurer.py: a real GPU."""

from __future__ import annotations

import gc
import time
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import torch

from gemlet.config.quantities import MIB
from gemlet.devices import nvml
from gemlet.errors import DeviceError
from gemlet.serve.execution import torch_models
from gemlet.serve.execution.graphed import Graphed
from gemlet.serve.execution.parts import Parts
from gemlet.serve.execution.torch_models import NUMPY
from gemlet.serve.models import built_in
from gemlet.serve.profiles.profile import Device
from gemlet.serve.profiling.stressors import Stressor
from gemlet.serve.profiling.together import Load, milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.serve.models.specification import ModelSpec

LAUNCH_MS = 0.5  # of work in a launch beside others, so that the one thread that feeds all streams is not the limit


class GpuRig:
    """One GPU that nobody else uses meanwhile. Raises DeviceError without one, or without green contexts."""

    def __init__(self, index: int = 0, driver: str = "") -> None:
        if not torch.cuda.is_available():
            raise DeviceError("torch sees no GPU", hint="use `gemlet profile --modelled`, which needs none")
        torch.cuda.set_device(index)
        torch.set_num_threads(1)  # as the executor does
        self.parts = Parts(index)
        self.groups = self.parts.groups.count
        self._stressors: dict[tuple[str, int, int], tuple[Stressor, float]] = {}
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        self.device = Device(
            name=properties.name,
            sms=properties.multi_processor_count,
            sm_step=self.parts.groups.group_sms,
            groups=self.groups,
            memory_mib=float(total // MIB),
            context_mib=500.0,
            driver=driver,
            versions={
                "torch": str(torch.__version__),
                "cuda": str(torch.version.cuda or ""),
                "cudnn": str(torch.backends.cudnn.version()),
            },
        )
        self.taken_mib = (total - free - torch.cuda.memory_reserved()) / MIB  # by this and all other processes

    def stressor(self, resource: str) -> float:
        half = self.groups // 2
        one, alone = self.stressor_on(resource, 0, half)
        other, _ = self.stressor_on(resource, half, self.groups - half)
        beside, _ = milliseconds([Load(one.stream, one.launch, alone), Load(other.stream, other.launch, alone)])
        return beside / alone

    def stressor_on(self, resource: str, first: int, count: int) -> tuple[Stressor, float]:
        """The stressor on these groups, and how long one launch takes it alone (ms)."""
        key = (resource, first, count)
        if key not in self._stressors:
            stream = self.parts.stream(first, count)
            made = Stressor(resource, stream, count * self.parts.groups.group_sms)
            made.launch()
            (alone,) = milliseconds([Load(stream, made.launch, 1.0)])
            self._stressors[key] = (made, alone)
        return self._stressors[key]

    def bench(self, spec: ModelSpec) -> GpuBench:
        return GpuBench(self, spec)


def create(index: int) -> GpuRig:
    """Raises DeviceError."""
    with nvml.session() as session:
        driver = session.driver_version() or ""
    return GpuRig(index, driver)


class GpuBench:
    """One model on that GPU."""

    def __init__(self, rig: GpuRig, spec: ModelSpec) -> None:
        self._rig, self._spec = rig, spec
        before = torch.cuda.memory_allocated()
        self._loaded = torch_models.load(spec)
        torch.cuda.synchronize()
        self.weights_mib = (torch.cuda.memory_allocated() - before) / MIB
        self.activation_mib = 0.0
        self._on: dict[tuple[int, int], Graphed] = {}  # by range of groups
        self._alone: dict[tuple[int, int, int], tuple[Callable[[], None], float]] = {}
        rows = (max(1, spec.max_batch),) if spec.max_batch else ()
        chance = np.random.default_rng(1)
        below = built_in.BUILT_IN[spec.name].below if spec.platform == "builtin" else 2
        self._inputs = {
            t.name: chance.integers(0, below, (*rows, *(max(1, n) for n in t.shape))).astype(NUMPY[t.datatype])
            for t in spec.inputs
        }

    def prepare(self, groups: int, batches: Sequence[int], first: int = 0) -> None:
        """Captures these batches on the groups from ``first``, unless they are."""
        there = self._on.get((first, groups))
        if there is not None and set(batches) <= set(there.batches):
            return
        if not self._on:
            self._measure_activations(max(batches))
        self._on[first, groups] = Graphed(self._spec, self._loaded, self._rig.parts.stream(first, groups), batches)

    def once(self, groups: int, batch: int, first: int = 0) -> float:
        rows = {name: each[:batch] if self._spec.max_batch else each for name, each in self._inputs.items()}
        begin = time.perf_counter()
        self._on[first, groups].run(rows, batch)
        return 1000 * (time.perf_counter() - begin)

    def load(self, groups: int, batch: int, first: int = 0) -> Load:
        """This model there, again and again, without copies; for together.milliseconds."""
        graphed = self._on[first, groups]
        key = (first, groups, batch)
        if key not in self._alone:
            about = min(self.once(groups, batch, first) for _ in range(3))  # and its inputs have values
            launch = graphed.repeated(batch, ceil(LAUNCH_MS / about))
            (alone,) = milliseconds([Load(graphed.stream, launch, about)])
            self._alone[key] = (launch, alone)
        launch, alone = self._alone[key]
        return Load(graphed.stream, launch, alone)

    def probe(self, groups: int, batch: int, resource: str) -> tuple[float, float]:
        mine = self.load(groups, batch)
        stressor, alone = self._rig.stressor_on(resource, groups, self._rig.groups - groups)
        beside, pressed = milliseconds([mine, Load(stressor.stream, stressor.launch, alone)])
        return beside / mine.about_ms, pressed / alone

    def close(self) -> None:
        for graphed in self._on.values():
            graphed.close()
        self._alone.clear()
        self._on.clear()
        del self._loaded
        gc.collect()
        torch.cuda.empty_cache()

    def _measure_activations(self, batch: int) -> None:
        """What one eager pass takes beyond the weights, for each row."""
        if self._loaded.module is None:
            return
        with torch.inference_mode():
            arguments = [
                torch.from_numpy(each[:batch] if self._spec.max_batch else each).cuda()
                for each in self._inputs.values()
            ]
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self._loaded.module(*arguments)
            torch.cuda.synchronize()
        self.activation_mib = (torch.cuda.max_memory_allocated() - before) / MIB / batch
