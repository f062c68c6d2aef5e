"""Reads the files that plans come of: demands, traces, plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.config.text_file import read_text
from gemlet.decoding import from_json
from gemlet.errors import ConfigError
from gemlet.serve.plan import demand_file, glet_config, glet_files
from gemlet.serve.plan.model import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gemlet.serve.plan.demand_file import DemandedService
    from gemlet.serve.plan.glet_config import GletConfig
    from gemlet.serve.plan.model import Demand
    from gemlet.serve.profiles.profile import Profiles


def load_service(path: Path) -> DemandedService:
    """A demand file in TOML, or glet's rates.csv. Raises ConfigError."""
    text = read_text(path)
    if path.suffix != ".toml":
        return demand_file.of_demands(glet_files.parse_rates(text, str(path)))
    return demand_file.parse(text, str(path), lambda name: read_text(path.parent / name))


def load_glet(paths: Sequence[Path]) -> GletConfig:
    """What glet's sim-config.json and lists of nodes say together. Raises ConfigError."""
    return glet_config.merged([glet_config.parse(read_text(path), str(path)) for path in paths])


def load_plan(path: Path, known: Profiles, demands: Sequence[Demand]) -> Plan:
    """A plan that `gemlet plan -o json` wrote, or glet's ModelList.txt. Raises ConfigError."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return glet_files.parse_model_list(text, str(path), known, demands)
    try:
        return from_json(text, Plan)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not a plan: {error}", path=str(path), hint="make one with `gemlet plan -o json`") from None
