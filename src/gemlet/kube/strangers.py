"""What is on the node under the names of shares, and is nobody's: left over by a crash, or put there by people."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.kube import cdi

if TYPE_CHECKING:
    from collections.abc import Collection


def names_there(shares: str, cdi_directory: Path) -> set[str]:
    """The names of all that looks like a share's, by directory or CDI file. Raises OSError."""
    return cdi.share_ids(cdi_directory) | {path.name for path in Path(shares).iterdir()}


def remove(shares: str, cdi_directory: Path, known: Collection[str]) -> dict[str, str]:
    """Removes what is not ``known``. Returns the names of what stays all the same, and why. Raises OSError."""
    stay: dict[str, str] = {}

    def stays(_: object, path: str, why: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(why[1], FileNotFoundError):
            stay.setdefault(Path(path).relative_to(shares).parts[0], str(why[1]))

    for path in Path(shares).iterdir():
        if path.name in known:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=stays)
            continue
        with contextlib.suppress(FileNotFoundError):
            try:
                path.unlink()
            except OSError as error:
                stay[path.name] = str(error)
    for share_id in cdi.share_ids(cdi_directory) - set(known):
        try:
            cdi.remove(cdi_directory, share_id)
        except OSError as error:  # its directory has gone, so no container starts by it
            stay[share_id] = str(error)
    return stay
