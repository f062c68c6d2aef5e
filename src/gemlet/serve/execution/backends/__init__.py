"""The backends by name; a module is imported when its backend is asked for, in the executor's process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.serve.execution.backend import Backend, BackendOptions

BACKENDS = {
    "noop": "gemlet.serve.execution.backends.noop",
    "modelled": "gemlet.serve.execution.backends.modelled",
    "cpu": "gemlet.serve.execution.backends.cpu",
    "green": "gemlet.serve.execution.backends.green",
    "mps": "gemlet.serve.execution.backends.mps",
    "streams": "gemlet.serve.execution.backends.streams",
}


def create(name: str, options: BackendOptions) -> Backend:
    """The backend of that name. Raises UsageError if there is none or a library it needs is missing."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}", hint=f"choose one of {', '.join(BACKENDS)}")
    try:
        module = importlib.import_module(BACKENDS[name])
    except ModuleNotFoundError as error:
        hint = (
            "pip install 'gemlet[torch]'"
            if error.name == "torch"
            else "install it, or use --executor cpu or --executor modelled"
        )
        raise UsageError(f"the backend {name!r} cannot be used: no module {error.name!r}", hint=hint) from error
    backend: Backend = module.create(options)
    return backend
