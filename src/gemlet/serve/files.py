"""Reads the files that plans come of: demands, profiles, traces, plans."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet.errors import ConfigError
from gemlet.serve import demand_file, glet_files, modelled, profiles
from gemlet.serve.planner.model import Plan
from gemlet.serve.profiling import vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.demand_file import Service
    from gemlet.serve.planner.model import Demand
    from gemlet.serve.profiles import Profiles

MEASURED = Path(__file__).with_name("measured")  # one file a device: profiles that are part of gemlet
MAX_BYTES = 64 * 1024**2  # a trace of a month in seconds has 20 MB


def read_text(path: Path) -> str:
    """The whole file. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"larger than {MAX_BYTES} bytes", path=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(path), hint="check the spelling") from None
    except UnicodeDecodeError:
        raise ConfigError("not valid UTF-8", path=str(path), hint="save the file as UTF-8") from None


def load_service(path: Path) -> Service:
    """A demand file in TOML, or glet's rates.csv. Raises ConfigError."""
    text = read_text(path)
    if path.suffix != ".toml":
        return demand_file.of_demands(glet_files.parse_rates(text, str(path)))
    return demand_file.parse(text, str(path), lambda name: read_text(path.parent / name))


def load_profiles(path: Path | None) -> Profiles:
    """The profiles in a file, or those of that name in shipped(); without either the modelled H200. Raises ConfigError.

    A name has no suffix, and a file that is there goes before it.
    """
    if path is None:
        return modelled.h200()
    if not path.suffix and not path.exists():
        known = shipped()
        if path.name not in known:
            hint = f"profiles measured for you: {', '.join(known)}; `gemlet profile` makes others"
            raise ConfigError(
                "there is no such file, and no profiles of that name in gemlet", path=str(path), hint=hint
            )
        path = known[path.name]
    return vectors.derived(profiles.parse(read_text(path), str(path)))


def shipped() -> dict[str, Path]:
    """The profiles that are part of gemlet, by name; measured by its authors on a device that is like yours or not."""
    return {path.stem: path for path in sorted(MEASURED.glob("*.json"))}


def load_plan(path: Path, known: Profiles, demands: Sequence[Demand]) -> Plan:
    """A plan that `gemlet plan -o json` wrote, or glet's ModelList.txt. Raises ConfigError."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return glet_files.parse_model_list(text, str(path), known, demands)
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not a plan: {error}", path=str(path), hint="gemlet plan -o json writes one") from None


def write_text(path: Path, text: str) -> None:
    """The old file or the new one, whole: for who reads meanwhile, and on a full disk. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal: nothing to replace
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(target)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", path=str(path)) from None
