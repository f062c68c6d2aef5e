"""What a backend is: the part of an executor that knows how to run models on gpu-lets of one device.

A backend lives in the executor's process and may block; the server never imports one, except `noop`. worker.py calls
`load`, `unload`, `partition` and `close` from one thread, and `run` from one thread for each gpu-let. A module in
backends/ has ``create(options: BackendOptions) -> Backend``; backends/__init__.py lists the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from gemlet.serve.models.specification import ModelSpec


class GpuLetGone(GemletError):
    """The gpu-let is not there any more: a newer partition took its place. Its requests go elsewhere, unharmed."""


class DeviceLost(GemletError):
    """The device does nothing more for this process: after an illegal access, say. Only a new process helps."""


class GpuLet(msgspec.Struct, frozen=True, kw_only=True):
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

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        """These are the gpu-lets from now on, usable on return. May be called while others run.

        Old ones end their batches; `run` on a gpu-let that no longer exists raises GpuLetGone.
        """
        ...

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        """Runs a batch of this many rows and waits for it, in the thread of that gpu-let.

        The arrays of ``inputs`` are views of shared memory, valid until return; axis 0 is the batch unless max_batch
        is 0. BYTES are arrays of objects (bytes). Raises ModelError, GpuLetGone, DeviceLost.
        """
        ...

    def close(self) -> None: ...
