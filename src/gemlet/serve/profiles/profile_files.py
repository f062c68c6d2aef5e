"""Reads profile files: the operator's, and those that are part of gemlet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.config.text_file import read_text
from gemlet.errors import ConfigError
from gemlet.serve.profiles import modelled, profile, vectors

if TYPE_CHECKING:
    from gemlet.serve.profiles.profile import Profiles

MEASURED = Path(__file__).with_name("measured")  # one file a device: profiles that are part of gemlet


def load_profiles(path: Path | None) -> Profiles:
    """The profiles in a file, or those of that name in shipped(); without either the modelled H200. Raises ConfigError.

    A name has no suffix, and a file that is there goes before it.
    """
    if path is None:
        return modelled.h200()
    if not path.suffix and not path.exists():
        known = shipped()
        if path.name not in known:
            hint = f"name one of gemlet's own, {', '.join(known)}, or make a file with `gemlet profile`"
            raise ConfigError(
                "neither a file nor profiles that come with gemlet have this name", path=str(path), hint=hint
            )
        path = known[path.name]
    return vectors.derived(profile.parse(read_text(path), str(path)))


def shipped() -> dict[str, Path]:
    """The profiles that are part of gemlet, by name; measured by its authors on a device that is like yours or not."""
    return {path.stem: path for path in sorted(MEASURED.glob("*.json"))}
