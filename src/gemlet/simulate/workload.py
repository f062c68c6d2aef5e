"""What a simulation runs, and how it is written down in TOML.

Times are nanoseconds here and strings such as ``"20ms"`` in the file; shares are fractions here and fractions or
strings such as ``"30%"`` in the file.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from gemlet.errors import ConfigError
from gemlet.model import GroupSpec, Priority

if TYPE_CHECKING:
    from pathlib import Path

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

Kind = Literal["saturating", "launch-bound", "changing", "think", "bursty", "onoff", "poisson", "periodic"]
Lie = Literal["", "silent", "boasts", "awaited", "idle"]
_UNITS = {"ns": 1, "us": MICROSECOND, "ms": MILLISECOND, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Costs of the modelled device. The defaults were measured on an H200 (driver 580)."""

    switch: int = 155 * MICROSECOND  # from one client's context to another's
    slice: int = 2090 * MICROSECOND  # how long one context runs while another has work
    reaction: int = 10 * MICROSECOND  # until a client that was told something acts on it
    idle_release: int = 100 * MICROSECOND  # an idle holder gives the token back after this while others wait
    mps: bool = False  # all contexts run at the same time
    mps_speedup: float = 8.0  # ... and get no more done together than this, against one alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """One client.

    kind: ``saturating`` always has work. ``launch-bound`` launches ``kernels`` kernels of ``kernel`` each, one every
    ``gap``, waits for them, works on the host for ``host``, and so on. ``changing`` is launch-bound for ``every``, then
    saturating for as long, and so on. ``think`` is launch-bound for ``on`` and does nothing for ``off``. ``bursty`` has
    ``work``, then thinks for ``think`` on the host, and so on. ``onoff`` saturates for ``on`` and stays away for
    ``off``. ``poisson`` gets ``rate`` requests a second of ``work`` each, at random, ``periodic`` as regularly as a
    clock; neither waits for the last one's end. kernel: one kernel's time alone. launch: the host takes so long for a
    launch where no ``gap`` says otherwise. demand: under MPS, the part of the device that a kernel uses. overrun: it
    stops at this multiple of its quantum (1.05: five per cent late, 0.95: early). lie: what it tells the arbiter is
    not so: ``silent`` says nothing, ``boasts`` says it did three times its work, ``awaited`` that it always waits for
    the device, ``idle`` that it never has work. count: so many alike.
    """

    kind: Kind = "saturating"
    kernel: int = 50 * MICROSECOND
    work: int = 5 * MILLISECOND
    think: int = 5 * MILLISECOND
    on: int = SECOND
    off: int = SECOND
    rate: float = 10.0
    kernels: int = 50
    gap: int = 40 * MICROSECOND
    host: int = 200 * MICROSECOND
    every: int = 5 * SECOND
    launch: int = 3 * MICROSECOND
    demand: float = 1.0
    lie: Lie = ""
    arrive: int = 0
    leave: int | None = None
    overrun: float = 1.0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Groups with their programs on one device."""

    groups: tuple[tuple[GroupSpec, tuple[ProgramSpec, ...]], ...]
    device: DeviceModel = field(default_factory=DeviceModel)
    parameters: dict[str, float] = field(default_factory=dict)
    policy: str = "fair"
    duration: int = 10 * SECOND
    seed: int = 1


def parse_duration(text: str) -> int:
    """Nanoseconds of ``"1.5s"``, ``"20ms"``, ``"155us"``. Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+|[0-9]+\.)\s*(ns|us|ms|s|m|h)\s*", text)
    if match is None:
        raise ValueError(f"'{text}' is not a duration such as 20ms or 1.5s")
    return round(float(match[1]) * _UNITS[match[2]])


def _share(value: object) -> float:
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return float(value.rstrip()[:-1]) / 100.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{value!r} is not a share such as 0.3 or '30%'")


def _convert(name: str, value: object, like: object) -> object:
    """``value`` from the file as the type of the field's default ``like``."""
    if name == "kind":
        if value not in get_args(Kind):
            raise ValueError(f"kind {value!r} is none of {', '.join(get_args(Kind))}")
        return value
    if name == "lie":
        if value not in get_args(Lie):
            raise ValueError(f"lie {value!r} is none of {', '.join(get_args(Lie)[1:])}")
        return value
    if isinstance(like, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r} is neither true nor false")
        return value
    if name == "leave" or (isinstance(like, int) and name not in {"count", "seed", "kernels"}):
        if not isinstance(value, str):
            raise ValueError(f"{name} = {value!r} needs a unit, for example '20ms'")
        return parse_duration(value)
    if isinstance(like, float):
        return _share(value)
    if not isinstance(value, type(like)) or isinstance(value, bool):
        raise ValueError(f"{name} = {value!r} is not of the kind {type(like).__name__}")
    return value


def _values(like: object, table: dict[str, Any]) -> dict[str, Any]:
    """The entries of ``table`` as keyword arguments for the dataclass that ``like`` is an instance of."""
    known = {f.name: getattr(like, f.name) for f in fields(like)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise ValueError(f"'{key}' is unknown; there are: {', '.join(known)}")
    return {key: _convert(key, value, known[key]) for key, value in table.items()}


def _tables(table: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = table.pop(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"'{key}' is written [[{key}]]")
    return found


def _group(table: dict[str, Any]) -> tuple[GroupSpec, tuple[ProgramSpec, ...]]:
    programs = tuple(ProgramSpec(**_values(ProgramSpec(), entry)) for entry in _tables(table, "program"))
    if "priority" in table:
        table["priority"] = Priority(table["priority"])
    return GroupSpec(**_values(GroupSpec(name=""), table)), programs


def load(path: Path) -> Workload:
    """The workload in a TOML file. Raises ConfigError with the file and what is wrong in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        groups = tuple(_group(entry) for entry in _tables(table, "group"))
        if not groups or not any(programs for _, programs in groups):
            raise ValueError("no [[group]] with a [[group.program]]")
        device = DeviceModel(**_values(DeviceModel(), table.pop("device", {})))
        parameters = {
            key: parse_duration(value) if isinstance(value, str) else value
            for key, value in table.pop("parameters", {}).items()
        }
        defaults = Workload(groups=())
        return Workload(groups=groups, device=device, parameters=parameters, **_values(defaults, table))
    except OSError as error:
        raise ConfigError(error.strerror or str(error), path=str(path)) from error
    except (ValueError, TypeError) as error:  # also what tomllib and UTF-8 decoding raise
        raise ConfigError(
            str(error), path=str(path), hint="gemlet/simulate/examples has two files to start from"
        ) from error
