"""A repository's ``model.py`` as a module, under a name of its own: models and versions do not replace each other.

It may import the files beside it, as a program does. Several models may have neighbours of the same name, and a process
has one module of a name: while a model is loaded, the neighbours of the others are out of the way.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.serve.models.specification import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gemlet.serve.models.specification import ModelSpec

_neighbours: dict[str, Path] = {}  # modules that came from models' folders, and from which


def imported(model: ModelSpec, path: Path) -> ModuleType:
    """Runs the file. Raises ModelError, or whatever it raises."""
    spec = importlib.util.spec_from_file_location(f"gemlet_model_{model.name}_{model.version}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """While a model is loaded: its code can import what is in this folder. For one thread at a time."""
    for name in [name for name, origin in _neighbours.items() if origin == folder or _has(folder, name)]:
        sys.modules.pop(name, None)
        del _neighbours[name]
    importlib.invalidate_caches()  # a file may be newer than the clock's grain shows
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what is imported only when a request comes
        for name in sys.modules.keys() - before:
            if any(Path(place).is_relative_to(folder) for place in _places(sys.modules[name])):
                _neighbours[name] = folder


def _places(module: ModuleType) -> list[str]:
    """Its file, or the folders of a package without one."""
    file = getattr(module, "__file__", None)
    return [file] if file is not None else list(getattr(module, "__path__", ()))


def _has(folder: Path, module: str) -> bool:
    first = module.partition(".")[0]
    return (folder / f"{first}.py").exists() or (folder / first).is_dir()
