"""What to serve, in TOML: for `gemlet plan` and `gemlet simulate --serve`.

gpus = 2                       # of the profiled kind; default 1. Of several, by profiles: { h200 = 2, "h100.json" = 1 }
policy = "nway+type"           # of `gemlet plan`
profiles = "h200.json"         # beside this file, or "h200": gemlet's own; without it the modelled H200
duration = "30s"               # of the simulation
seed = 1

[options]                      # of the planner, see gemlet.serve.plan.model.PlanOptions
quantile = 0.99

[[model]]
name = "resnet50"              # as the profiles call it
slo = "25ms"                   # for a reply, counted from the request's arrival
rate = 2000                    # requests/s; or one of
# rate = { mean = 2000, swing = 0.5, period = "60s" }            a sinusoid
# rate = { at = ["0s", "10s"], rates = [1000, 3000] }            steps
# rate = { file = "flux.txt", step = "20s" }                     glet's flux format: one rate a line
# rate = { file = "rates.csv" }                                  second,model,... and a line for each step
arrivals = "poisson"           # uniform, poisson, or gamma with its
variation = 4.0                # coefficient of variation
plan_rate = 2500               # what to plan for; default: the highest rate within the duration
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec

from gemlet.config import suggest, toml_places, toml_text
from gemlet.config.quantities import parse_seconds
from gemlet.decoding import convert
from gemlet.errors import ConfigError, InvalidValue
from gemlet.load import arrivals
from gemlet.serve.plan.model import Demand, PlanOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HINT = "docs/serving/plan.md describes the format"
# What a batch takes from the queues to an executor's process and back, beside what is in its profile: from that
# process' arrays to its arrays. 0.35 to 0.45 ms, measured on the host of an H200 (bench/attainment.py).
HOP_MS = 0.4

MOST_GPUS = 1 << 16  # of one plan, which lists each


class _Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any of the tables that `rate` can be; which one, its keys say."""

    mean: float | None = None
    swing: float = 0.0
    period: str | None = None
    at: list[str] | None = None
    rates: list[float] | None = None
    file: str | None = None
    step: str | None = None


class _Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    slo: str
    rate: float | _Rate
    arrivals: arrivals.Spread = "poisson"
    variation: float | None = None
    plan_rate: float | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: list[_Model]
    gpus: Annotated[int, msgspec.Meta(le=MOST_GPUS)] | dict[str, Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]] = 1
    policy: str = "nway+type"
    profiles: str | None = None
    duration: str = "30s"
    hop: str = f"{HOP_MS:g}ms"
    seed: int = 1
    options: PlanOptions = PlanOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandedModel:
    """One model to serve: what is planned for, and how its requests really come."""

    demand: Demand
    rate: arrivals.Rate
    spread: arrivals.Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandedService:
    """A whole file. ``profiles`` as the file names it; hop_ms: of a batch, to its executor and back.

    kinds: the devices of each kind by the name of its profiles, where the file names several; gpus: all of them.
    """

    models: tuple[DemandedModel, ...]
    gpus: int = 1
    kinds: Mapping[str, int] = field(default_factory=dict)
    policy: str = "nway+type"
    profiles: str | None = None
    seconds: float = 30.0
    hop_ms: float = HOP_MS
    seed: int = 1
    options: PlanOptions = field(default_factory=PlanOptions)

    @property
    def demands(self) -> tuple[Demand, ...]:
        return tuple(model.demand for model in self.models)

    def demands_at(self, second: float) -> tuple[Demand, ...]:
        """The demands at the rates of that second, not at those that a fixed plan is made for."""
        return tuple(msgspec.structs.replace(model.demand, rate=model.rate.at(second)) for model in self.models)

    def arrivals(self, seconds: float, times: float = 1.0) -> dict[str, Iterator[float]]:
        """When requests come, by model, with all rates multiplied by ``times``; the same seed, the same arrivals."""
        streams = {}
        for number, model in enumerate(self.models):
            draw = arrivals.gaps(model.spread, model.demand.variation, random.Random(f"{self.seed}/{number}"))
            streams[model.demand.model] = arrivals.times(arrivals.Scaled(model.rate, times), draw, seconds)
        return streams


def of_demands(demands: tuple[Demand, ...]) -> DemandedService:
    """A service of constant rates, Poisson arrivals and all defaults: what a rates.csv means."""
    return DemandedService(
        models=tuple(DemandedModel(demand=d, rate=arrivals.constant(d.rate), spread="poisson") for d in demands)
    )


def parse(text: str, path: str, read: Callable[[str], str]) -> DemandedService:
    """The service in ``text``; ``read`` gives the text of a file it names. Raises ConfigError with the place."""
    try:
        table = toml_text.loads(text)
    except ValueError as error:
        raise ConfigError(str(error), path=path, hint=HINT) from None
    try:
        file = convert(table, _File)
    except msgspec.ValidationError as error:
        raise _at_its_place(error, text, path) from None
    places = toml_places.scan(text)
    models = []
    seconds = _seconds(file.duration, path, "duration")
    for number, entry in enumerate(file.model):
        try:
            models.append(_model(entry, seconds, read))
        except (ValueError, InvalidValue) as error:
            offsets = places.get(("model", number))
            line = text.count("\n", 0, offsets.key) + 1 if offsets else None
            raise ConfigError(f"model {entry.name!r}: {error}", path=path, line=line, hint=HINT) from None
    if not models:
        raise ConfigError("no [[model]]", path=path, hint=HINT)
    hop_ms = 1000 * _seconds(file.hop, path, "hop", least=0.0)
    counts = file.gpus if isinstance(file.gpus, dict) else {}
    if counts and file.profiles is not None:
        raise ConfigError("gpus names the profiles of each kind already", path=path, hint="remove profiles")
    return DemandedService(
        models=tuple(models),
        gpus=file.gpus if isinstance(file.gpus, int) else sum(counts.values()),
        kinds=counts,
        policy=file.policy,
        profiles=file.profiles,
        seconds=seconds,
        hop_ms=hop_ms,
        seed=file.seed,
        options=msgspec.structs.replace(file.options, hop_ms=hop_ms),
    )


def _seconds(text: str, path: str, what: str, *, least: float | None = None) -> float:
    try:
        value = parse_seconds(text)
    except InvalidValue as error:
        raise ConfigError(f"{what}: {error}", path=path, hint=error.hint) from None
    if value <= 0 and value != least:
        raise ConfigError(f"{what}: {text} is not a valid length: expected more than 0", path=path)
    return value


def _model(entry: _Model, seconds: float, read: Callable[[str], str]) -> DemandedModel:
    rate = _rate(entry, read)
    variation = {"uniform": 0.0, "poisson": 1.0}.get(entry.arrivals, entry.variation)
    if variation is None:
        raise ValueError("add the variation of gamma arrivals, such as variation = 4.0")
    if entry.arrivals != "gamma" and entry.variation is not None:
        raise ValueError(f"remove variation: it is for gamma arrivals, not {entry.arrivals}")
    if entry.arrivals == "gamma" and variation <= 0:
        raise ValueError(f"variation {variation:g} is not above 0")
    slo_ms = 1000 * parse_seconds(entry.slo)
    if slo_ms <= 0:
        raise ValueError("an SLO of 0 cannot be met")
    highest = max(rate.at(seconds * step / 1000) for step in range(1000))
    planned = highest if entry.plan_rate is None else entry.plan_rate
    if planned < 0:
        raise ValueError(f"the rate is {planned:g} requests/s: expected 0 or more")
    demand = Demand(model=entry.name, rate=planned, slo_ms=slo_ms, variation=variation)
    return DemandedModel(demand=demand, rate=rate, spread=entry.arrivals)


def _rate(entry: _Model, read: Callable[[str], str]) -> arrivals.Rate:
    rate = entry.rate
    if not isinstance(rate, _Rate):
        return arrivals.constant(rate)
    if rate.mean is not None:
        return arrivals.Sinusoid(rate.mean, rate.swing, parse_seconds(rate.period or "60s"))
    if rate.at is not None and rate.rates is not None:
        if len(rate.at) != len(rate.rates):
            raise ValueError(f"{len(rate.at)} times and {len(rate.rates)} rates")
        return arrivals.Steps(tuple(parse_seconds(time) for time in rate.at), tuple(rate.rates))
    if rate.file is None:
        raise ValueError("rate is a number, or a table with mean, with at and rates, or with file")
    text = read(rate.file)
    if "," not in text:
        return arrivals.parse_flux(text, parse_seconds(rate.step or f"{arrivals.GLET_STEP_S:g}s"))
    columns = arrivals.parse_csv(text)
    if entry.name not in columns:
        raise ValueError(f"{rate.file} has no column {entry.name!r}; {suggest.hint(entry.name, columns)}")
    return columns[entry.name]


def _at_its_place(error: msgspec.ValidationError, text: str, path: str) -> ConfigError:
    """msgspec says `... - at `$.model[0].slo``; this finds the line."""
    message, _, where = str(error).partition(" - at ")
    keys = tuple(int(key) if key.isdigit() else key for key in re.findall(r"[\w-]+", where))
    places = toml_places.scan(text)
    while keys and keys not in places:
        keys = keys[:-1]
    name = re.sub(r"\.(\d+)", lambda found: f" {int(found[1]) + 1}", ".".join(str(key) for key in keys))
    unknown = re.search(r"unknown field `(\w+)`", message)
    hint = 'a duration such as "25ms"' if keys and keys[-1] in {"slo", "duration", "period", "step"} else HINT
    if unknown:
        known = _Model.__struct_fields__ if keys[:1] == ("model",) else _File.__struct_fields__
        hint = suggest.hint(unknown[1], PlanOptions.__struct_fields__ if keys == ("options",) else known)
        keys = (*keys, unknown[1]) if (*keys, unknown[1]) in places else keys
    line = text.count("\n", 0, places[keys].key) + 1 if keys in places else None
    return ConfigError(f"{name}: {message}" if name else message, path=path, line=line, hint=hint)
