"""Whether the libraries of `gemlet serve` are there: a message and a hint in place of a traceback."""

from __future__ import annotations

import importlib.util

from gemlet.errors import UsageError

LIBRARIES = ("httptools", "uvloop", "ngh2", "google.protobuf", "numpy", "yaml", "prometheus_client")


def check() -> None:
    """Raises UsageError that names what is missing."""
    missing = [name for name in LIBRARIES if not _there(name)]
    if missing:
        hint = "pip install 'gemlet[serve]'"
        raise UsageError(f"`gemlet serve` needs {', '.join(missing)}, which are not installed", hint=hint)


def _there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
