"""A model as everything else knows it: its name, files, tensors, largest batch, deadline and priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from gemlet.errors import GemletError

Platform = Literal[
    "torch_export", "torchscript", "onnx", "tensorrt", "python", "triton_python", "builtin", "noop", "modelled"
]
ServiceClass = Literal["latency", "throughput"]


class ModelError(GemletError):
    """A model cannot be loaded or run; the message goes to the caller. ``key``: of the model that was to be loaded."""

    key = ""


class DiedLoading(ModelError):
    """The executor died meanwhile: of this model, or of what another one did."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output. ``datatype`` as in the Open Inference Protocol: "FP32", "INT64", "BYTES", ...

    ``shape`` without the batch dimension; -1 = any. optional: an input that a request may leave out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


class WarmUp(msgspec.Struct, frozen=True):
    """A batch that is run ``count`` times once a model is loaded.

    inputs: each with what fills it: "zero", "random", or the name of a file with the bytes of a row.
    """

    name: str
    rows: int
    count: int
    inputs: tuple[tuple[TensorSpec, str], ...]


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model of a repository.

    directory: of the model, absolute; the version's files are in ``directory/version``. max_batch: rows of a batch; 0 =
    shapes have no batch dimension, and requests are run one by one. sm: the share of a device's SMs that the operator
    asks for, in (0, 1]; None leaves it to the planner. priority: 1 is the first served. revision: changes whenever a
    file of this version does, or one of all versions. latest: requests that name no version mean this one.
    configuration: JSON, as Triton's Python models get it. file: name of the version's file, where it is not its
    platform's. warm_up: what is run before the first request.
    """

    name: str
    directory: str
    platform: Platform
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 1
    slo_ms: float = 1000.0
    sm: float | None = None
    service_class: ServiceClass = "latency"
    priority: int = 2
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    version: int = 1
    revision: str = ""
    latest: bool = True
    configuration: str = ""
    file: str = ""
    warm_up: tuple[WarmUp, ...] = ()

    @property
    def key(self) -> str:
        """What executors know it by. Other files are another model there, and beside the old one for a while."""
        return f"{self.name}/{self.version}@{self.revision}" if self.revision else self.name

    @property
    def by_request(self) -> bool:
        """Whether it gets the requests of a batch one by one, and answers each."""
        return self.platform == "triton_python"

    @property
    def shown_platform(self) -> str:
        """What clients are told."""
        return "python" if self.by_request else self.platform

    @property
    def label(self) -> str:
        """What plans, profiles and queues know it by: a model's name is its latest version. No directory has a `/`."""
        return self.name if self.latest else f"{self.name}/{self.version}"
