"""`gemlet serve --example`: a repository of two models without weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from gemlet.errors import UsageError

SOURCE = Path(__file__).parents[2] / "examples" / "models"


def write(folder: Path) -> list[Path]:
    """Copies the example there; its model directories. Raises UsageError if something is there already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty", hint="name a new directory")
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return sorted(path for path in folder.iterdir() if path.is_dir())
