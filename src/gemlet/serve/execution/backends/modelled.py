"""Takes the time that a profile gives for (model, share, batch) and answers with zeros: serving without a GPU.

The replies have the declared shapes. Only their time is meaningful, and it varies as the profile says. A
model's profile is the one of its own name, or of the name in its parameter ``profile``. Neighbours do not slow each
other down here.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from gemlet.serve.execution.backend import GpuLetGone
from gemlet.serve.execution.backends import noop
from gemlet.serve.models.specification import ModelError
from gemlet.serve.profiles import modelled, profile, variation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from gemlet.serve.execution.backend import BackendOptions, GpuLet
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.profiles.profile import ModelProfile, Profiles


def profile_name(model: ModelSpec) -> str:
    """The profile that stands for a model."""
    built = model.parameters.get("model") if model.platform == "builtin" else None
    return model.parameters.get("profile") or built or model.name


class ModelledBackend:
    """One device that there is not."""

    name = "modelled"

    def __init__(self, known: Profiles) -> None:
        self.note = f"{known.device.name}; profiles {known.origin}"
        self._known = known
        self._chance = random.Random()
        self._models: dict[str, ModelSpec] = {}
        self._shares: dict[str, float] = {}
        self._rows: dict[tuple[str, float], list[float]] = {}

    def load(self, model: ModelSpec) -> int:
        profile = self._profile(model)
        self._rows = {key: row for key, row in self._rows.items() if key[0] != model.key}
        self._models[model.key] = model
        return int((profile.weights_mib + profile.activation_mib * max(1, model.max_batch)) * 1024**2)

    def unload(self, model: str) -> None:
        self._models.pop(model, None)

    def partition(self, gpu_lets: Sequence[GpuLet]) -> None:
        self._shares = {gpu_let.name: gpu_let.sm for gpu_let in gpu_lets}

    def run(self, gpu_let: str, model: str, inputs: Mapping[str, np.ndarray], batch: int) -> Mapping[str, np.ndarray]:
        began = time.perf_counter()
        share, spec = self._shares.get(gpu_let), self._models.get(model)
        if share is None or spec is None:
            raise GpuLetGone(f"there is no gpu-let {gpu_let} that serves {model}")
        row = self._rows.get((model, share))
        if row is None:
            row = self._rows[model, share] = self._profile(spec).surface.row(share)
        last = len(row) - 1
        ms = row[batch] if batch <= last else row[last] * batch / last  # beyond the profile: no faster per row
        ms *= variation.jitter(self._profile(spec).variation, self._chance)
        outputs = {output.name: noop.zeros(spec, output, batch) for output in spec.outputs}
        time.sleep(max(0.0, began + ms / 1000 - time.perf_counter()))
        return outputs

    def close(self) -> None:
        pass

    def _profile(self, model: ModelSpec) -> ModelProfile:
        name = profile_name(model)
        if name not in self._known.models:
            hint = f"name one of {', '.join(self._known.models)} in its parameter `profile`, or give --profiles"
            raise ModelError(f"there is no profile of {name!r}, so its time cannot be modelled", hint=hint)
        return self._known.models[name]


def create(options: BackendOptions) -> ModelledBackend:
    known = profile.parse(options.profiles, "profiles.json") if options.profiles else modelled.h200()
    return ModelledBackend(known)
