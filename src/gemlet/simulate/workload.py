"""What a simulation runs, and its form in TOML.

Times are nanoseconds here and strings such as ``"20ms"`` in the file; shares are fractions here and fractions or
strings such as ``"30%"`` in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from gemlet.config import group_fields, rules, suggest, text_file, toml_text
from gemlet.config.quantities import MICROSECOND, MILLISECOND, SECOND, parse_duration
from gemlet.config.toml_values import kind_of, one_of, read_factor
from gemlet.errors import ConfigError, InvalidValue
from gemlet.model import GROUP_FIELDS, GroupSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

EXAMPLES = "see an example: gemlet simulate --example FILE"

WHOLE_NUMBERS = {"count", "seed", "kernels", "layers", "steps"}  # all others are times

Given = TypeVar("Given")
Kind = Literal[
    "saturating", "launch-bound", "changing", "think", "bursty", "onoff", "poisson", "answers", "periodic", "ranks"
]
Lie = Literal["", "silent", "boasts", "awaited", "idle"]


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
    ``gap``, waits for them, works on the host for ``host``, and so on; if ``prefill`` is given, each ``steps`` of
    these begin with that much work at once, as generation of text does. ``changing`` is launch-bound for ``every``,
    then saturating for as long, and so on. ``think`` is launch-bound for ``on`` and does nothing for ``off``.
    ``bursty`` has ``work``, then thinks for ``think`` on the host, and so on. ``onoff`` saturates for ``on`` and stays
    away for ``off``. ``poisson`` gets ``rate`` requests a second of ``work`` each, at random, ``periodic`` as
    regularly as a clock; neither waits for the last one's end. ``answers`` gets requests as ``poisson`` does; each is
    ``prefill`` of work, then ``steps`` times ``kernels`` kernels, one every ``gap``, for which it waits, and ``host``,
    as a service does that generates text. ``ranks`` is one of several on a device each: in every
    step ``layers`` times ``kernels`` kernels, one every ``gap``, and a collective of ``collective`` that waits on the
    device for those of the other ranks; then it waits for all of it and works on the host for ``host``, unless that
    is 0, and up to ``uneven`` times as long more, at random, each rank for itself. kernel: one kernel's time alone.
    launch: the host's time for a launch where no ``gap`` says otherwise. demand: under MPS, the part of the device
    that a kernel uses. overrun: it stops at this multiple of its quantum (1.05: five per cent late, 0.95: early).
    lie: it tells the arbiter something false: ``silent`` says nothing, ``boasts`` says it did three times its work,
    ``awaited`` that it always waits for the device, ``idle`` that it never has work. count:
    how many alike.
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
    prefill: int = 0
    steps: int = 100
    uneven: float = 0.0
    every: int = 5 * SECOND
    layers: int = 1
    collective: int = 500 * MICROSECOND
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


def _convert(name: str, value: object, like: object) -> object:
    """``value`` from the file as the type of the field's default ``like``."""
    if name == "kind":
        return one_of(value, get_args(Kind))
    if name == "lie":
        return one_of(value, get_args(Lie))
    if isinstance(like, bool):
        if not isinstance(value, bool):
            raise InvalidValue(f"expected true or false, found {kind_of(value)}")
        return value
    if name == "leave" or (isinstance(like, int) and name not in WHOLE_NUMBERS):
        if not isinstance(value, str):
            raise InvalidValue(f"expected a duration with a unit, found {value!r}", hint="write a text such as '20ms'")
        return parse_duration(value)
    if isinstance(like, float):
        return read_factor(value)
    if not isinstance(value, type(like)) or isinstance(value, bool):
        expected = "a whole number" if isinstance(like, int) else "a text"
        raise InvalidValue(f"expected {expected}, found {kind_of(value)}")
    return value


def _values(like: object, table: dict[str, Any]) -> dict[str, Any]:
    """The entries of ``table`` as keyword arguments for the dataclass that ``like`` is an instance of."""
    known = {f.name: getattr(like, f.name) for f in fields(like)}  # type: ignore[arg-type]
    return {key: _named(key, partial(_convert, key, value, _known(key, known))) for key, value in table.items()}


def _known(key: str, known: Mapping[str, Given]) -> Given:
    if key not in known:
        raise InvalidValue(f"'{key}' is unknown: expected one of {', '.join(known)}", hint=suggest.hint(key, known))
    return known[key]


def _named(key: str, read: Callable[[], Given]) -> Given:
    """What ``read`` returns; its errors say that they are about ``key``."""
    try:
        return read()
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error.message}", hint=error.hint) from None


def _tables(table: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = table.pop(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InvalidValue(f"'{key}' is {kind_of(found)}: it is written [[{key}]]", hint=f"write [[{key}]]")
    return found


def _group(table: dict[str, Any]) -> tuple[GroupSpec, tuple[ProgramSpec, ...]]:
    programs = tuple(ProgramSpec(**_values(ProgramSpec(), entry)) for entry in _tables(table, "program"))
    if any(program.leave is not None and program.leave <= program.arrive for program in programs):
        raise InvalidValue("a program leaves before it has come: expected `leave` after `arrive`")
    name = table.pop("name", "")
    values = {
        key: _named(key, partial(group_fields.read, _known(key, GROUP_FIELDS), value)) for key, value in table.items()
    }
    group = GroupSpec(name=str(name), **values)
    if broken := next(rules.violations(group), None):
        raise InvalidValue(f"group {group.name!r}: {broken.message}", hint=broken.hint)
    return group, programs


def load(path: Path) -> Workload:
    """The workload in a TOML file. Raises ConfigError with the file and what is wrong in it."""
    try:
        table = toml_text.loads(text_file.read_text(path))
        groups = tuple(_group(entry) for entry in _tables(table, "group"))
        if not groups or not any(programs for _, programs in groups):
            hint = "add --serve, if this is a demand file" if "model" in table else EXAMPLES
            raise InvalidValue("no [[group]] with a [[group.program]]", hint=hint)
        device = DeviceModel(**_values(DeviceModel(), table.pop("device", {})))
        parameters = {
            key: parse_duration(value) if isinstance(value, str) else value
            for key, value in table.pop("parameters", {}).items()
        }
        defaults = Workload(groups=())
        return Workload(groups=groups, device=device, parameters=parameters, **_values(defaults, table))
    except InvalidValue as error:
        raise ConfigError(error.message, path=str(path), hint=error.hint or EXAMPLES) from error
    except (ValueError, TypeError, OverflowError) as error:  # also what tomllib and UTF-8 decoding raise
        raise ConfigError(str(error), path=str(path), hint=EXAMPLES) from error
