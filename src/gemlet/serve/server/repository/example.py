"""`gemlet serve --example`: a repository of two models without weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from gemlet.errors import UsageError

SOURCE = Path(__file__).parents[2] / "examples" / "models"


def write(folder: Path) -> list[Path]:
    """Copies the example there; its model directories. Raises UsageError if something else is there already, or if
    nothing can be written there.

    What an interrupted copy left is completed. ``folder`` may belong to somebody else who lets us write: a volume.
    """
    files = {
        path.relative_to(SOURCE): path
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if folder.exists() and not _is_of(files, folder):
        raise UsageError(f"{folder} exists and is not empty", hint="name a new directory")
    try:
        for name, source in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another directory") from None
    return sorted({folder / name.parts[0] for name in files})


def _is_of(files: dict[Path, Path], folder: Path) -> bool:
    """Whether there is nothing in ``folder`` but beginnings of these files."""
    if not folder.is_dir():
        return False
    there = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return all(
        path.is_file()
        and not path.is_symlink()
        and (source := files.get(path.relative_to(folder))) is not None
        and source.read_bytes().startswith(path.read_bytes())
        for path in there
    )
