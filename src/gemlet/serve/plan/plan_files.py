"""Reads the files that plans come of: demands, traces, plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet.config.text_file import read_text
from gemlet.decoding import from_json
from gemlet.errors import ConfigError, UsageError
from gemlet.serve.plan import demand_file, glet_config, glet_files
from gemlet.serve.plan.model import Plan
from gemlet.serve.profiles import kinds, profile_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.plan.demand_file import DemandedService
    from gemlet.serve.plan.glet_config import GletConfig
    from gemlet.serve.plan.model import Demand
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import Profiles

Counts = int | Mapping[str, int]  # devices; or those of each kind, by the name of its profiles


def load_service(path: Path) -> DemandedService:
    """A demand file in TOML, or glet's rates.csv. Raises ConfigError."""
    text = read_text(path)
    if path.suffix != ".toml":
        return demand_file.of_demands(glet_files.parse_rates(text, str(path)))
    return demand_file.parse(text, str(path), lambda name: read_text(path.parent / name))


def load_known(
    service: DemandedService, folder: Path, profiles: Path | None, gpus: Counts | None
) -> tuple[Known, int | None]:
    """The profiles to plan with, and how many devices there are, None if only the file says so.

    Those of the command line come first, then those of the service, whose file is in this folder. Raises ConfigError,
    UsageError where profiles are named twice.
    """
    if isinstance(gpus, int) or gpus is None:
        count = gpus
        if service.kinds and profiles is None and gpus is None:
            return kinds.of_counts(load_kinds(service.kinds, folder)), sum(service.kinds.values())
        named = folder / service.profiles if service.profiles else None
        return profile_files.load_profiles(profiles or named), count
    if profiles is not None:
        hint = "leave out --profiles"
        raise UsageError("--gpus names the profiles of each kind already, and --profiles names others", hint=hint)
    return kinds.of_counts(load_kinds(gpus, folder=None)), sum(gpus.values())


def load_kinds(counts: Mapping[str, int], folder: Path | None) -> list[tuple[Profiles, int]]:
    """The profiles of each kind, from files beside ``folder``'s or those of gemlet's own, and its number of devices."""
    return [
        (profile_files.load_profiles(Path(name) if folder is None else folder / name), n) for name, n in counts.items()
    ]


def load_glet(paths: Sequence[Path]) -> GletConfig:
    """What glet's sim-config.json and lists of nodes say together. Raises ConfigError."""
    return glet_config.merged([glet_config.parse(read_text(path), str(path)) for path in paths])


def load_plan(path: Path, known: Known, demands: Sequence[Demand]) -> Plan:
    """A plan that `gemlet plan -o json` wrote, or glet's ModelList.txt. Raises ConfigError; also where a device is
    planned as what it is not."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return glet_files.parse_model_list(text, str(path), known, demands)
    try:
        plan = from_json(text, Plan)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not a plan: {error}", path=str(path), hint="make one with `gemlet plan -o json`") from None
    for gpu in plan.gpus:
        kind = kinds.kind_of(known, gpu.index)
        if gpu.device != kind:
            planned, there = gpu.device or "the only kind", kind or "of the only kind"
            hint = "name the same kinds as for the plan: --gpus, or gpus of the demand file"
            raise ConfigError(f"GPU {gpu.index} is planned as {planned}, and is {there}", path=str(path), hint=hint)
    return plan
