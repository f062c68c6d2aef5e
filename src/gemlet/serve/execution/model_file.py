"""A repository's ``model.py`` as a module, under a name of its own: models and versions do not replace each other."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from gemlet.serve.models.specification import ModelSpec


def imported(model: ModelSpec, path: Path) -> ModuleType:
    """Runs the file. Raises ModelError, or whatever it raises."""
    spec = importlib.util.spec_from_file_location(f"gemlet_model_{model.name}_{model.version}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
