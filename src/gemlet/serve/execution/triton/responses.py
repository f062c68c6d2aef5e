"""What a request to a Python model came to. Apart from what runs one: an executor imports that when it has a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Failure:
    """A response that is an error. ``code``: of backend_utils.TritonError, by its name."""

    message: str
    code: str


Response = dict[str, np.ndarray] | Failure
