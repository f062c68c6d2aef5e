"""What a backend is: the part of an executor that knows how to run models on gpu-lets of one device.

A backend lives in the executor's process and may block; the server never imports one, except `noop`. worker.py calls
`load`, `unload`, `partition` and `close` from one thread, and `run` from one thread for each gpu-let. A module in
backends/ has ``create(options: BackendOptions) -> Backend``; backends/__init__.py lists the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

Platform = Literal["torch_export", "torchscript", "onnx", "python", "builtin", "noop", "modelled"]
Class = Literal["latency", "throughput"]


class ModelError(GemletError):
    """A model cannot be loaded or run; the words go to whoever asked for it."""


class LetGone(GemletError):
    """The gpu-let is not there any more: a newer partition took its place. Its requests go elsewhere, unharmed."""


class DeviceLost(GemletError):
    """The device does nothing more for this process: after an illegal access, say. Only a new process helps."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output. ``datatype`` as in the Open Inference Protocol: "FP32", "INT64", "BYTES", ...

    ``shape`` without the batch dimension; -1 = any.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a repository, in the version that is served.

    directory: of the model, absolute; the version's files are in ``directory/version``. max_batch: rows of a batch; 0 =
    shapes have no batch dimension, and requests are run one by one. sm: the share of a device's SMs that the operator
    asks for, in (0, 1]; None leaves it to the planner. priority: 1 is the first served. revision: changes whenever a
    file of the model does.
    """

    name: str
    directory: str
    platform: Platform
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 1
    slo_ms: float = 1000.0
    sm: float | None = None
    klass: Class = "latency"
    priority: int = 2
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    version: int = 1
    versions: tuple[int, ...] = (1,)
    revision: str = ""


class LetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A gpu-let of this executor's device: "gpu0/let1", its share of the SMs in (0, 1], model -> largest batch."""

    name: str
    sm: float
    models: dict[str, int]


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is created with. ``device``: index of the GPU. ``profiles``: JSON of a profile file, or ""."""

    device: int = 0
    profiles: str = ""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


class Backend(Protocol):
    """Runs models on the gpu-lets of one device."""

    name: str  # "cpu", "modelled", "green", "mps", "streams": said in the first lines of `gemlet serve`

    def load(self, model: ModelSpec) -> int:
        """Makes the model ready for any gpu-let. Returns bytes of device memory. Raises ModelError."""
        ...

    def unload(self, model: str) -> None: ...

    def partition(self, lets: Sequence[LetSpec]) -> None:
        """These are the gpu-lets from now on, usable on return. May be called while others run.

        Old ones end what they run; `run` on one that is not there any more raises LetGone.
        """
        ...

    def run(self, let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        """Runs a batch of so many rows and waits for it, in the thread of that gpu-let.

        The arrays of ``inputs`` are views of shared memory, valid until return; axis 0 is the batch unless max_batch
        is 0. BYTES are arrays of objects (bytes). Raises ModelError, LetGone, DeviceLost.
        """
        ...

    def close(self) -> None: ...
