"""Profiles: how long a model takes by (SM share, batch) on one kind of device, its memory, how it disturbs others.

A profile file holds one device and its models, as JSON or TOML of the same shape:

    schema = 1
    origin = "measured"             # or "modelled" (computed, never seen on a GPU), "imported" (someone else's)
    note = "where the numbers come from"

    [device]
    name = "NVIDIA H200"
    sms = 132
    sm_step = 8                     # SMs can be split in groups of so many
    groups = 15                     # how many groups that makes; without it, sms / sm_step
    memory_mib = 143167
    driver = "580.159"
    versions = { cuda = "13.0" }

    [models.resnet50]
    latency = [[0.25, 1, 1.4], [1.0, 1, 0.6], [1.0, 32, 2.1]]   # SM share, batch, milliseconds
    weights_mib = 98
    activation_mib = 22             # for each request of a batch
    variation = 0.03                # standard deviation of the latency over its mean
    # slow-down - 1 beside a stressor of this resource; beside: beside any neighbour
    sensitivity = { dram = 0.3, l2 = 0.1, compute = 0.5, beside = 0.05 }
    pressure = { dram = 0.4, l2 = 0.2, compute = 0.6 }          # 0..1, on the whole device: how much of it it takes

Text goes in and out here; who reads files is files.py.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import msgspec

from gemlet.config import toml_text
from gemlet.decoding import convert, from_json
from gemlet.errors import ConfigError
from gemlet.serve.profiles.surface import Point, Surface

SCHEMA = 1
Origin = Literal["measured", "modelled", "imported"]
RESOURCES = ("dram", "l2", "compute")
MOST = 1e6  # of a variation and a sensitivity: their squares and products stay numbers


class Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number for each resource that models share; ``beside``, of sensitivities only: for any neighbour at all."""

    dram: float = 0.0
    l2: float = 0.0
    compute: float = 0.0
    beside: float = 0.0


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device that was profiled. ``context_mib`` is what one process takes before any model is loaded.

    groups: how many groups of ``sm_step`` SMs it splits into; 0: as many as there is room for.
    """

    name: str
    sms: int
    memory_mib: float
    sm_step: int = 8
    context_mib: float = 500.0
    groups: int = 0
    driver: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def parts(self) -> int:
        """How many gpu-lets of the least size the device can have."""
        return self.groups or max(1, self.sms // self.sm_step)


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model beside a stressor, both on SMs of their own and both without a pause: what the vectors are made from.

    share, batch: of the model; the stressor has the rest of the device. slower: the model's time beside the stressor
    over its time alone; pressed: the same of the stressor.
    """

    resource: str
    share: float
    batch: int
    slower: float
    pressed: float


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One model on that device; units as in the module's docstring."""

    latency: tuple[Point, ...]
    weights_mib: float = 0.0
    activation_mib: float = 0.0
    variation: float = 0.0
    sensitivity: Vector = Vector()
    pressure: Vector = Vector()
    probes: tuple[Probe, ...] = ()

    @cached_property
    def surface(self) -> Surface:
        return Surface(self.latency)


def limited(model: ModelProfile, largest: int) -> ModelProfile:
    """The profile of a model that takes no larger batches than this, though it was measured with such."""
    surface = model.surface
    if largest >= surface.max_batch:
        return model
    edge = tuple((share, largest, surface.latency(share, largest)) for share in sorted({p[0] for p in model.latency}))
    return msgspec.structs.replace(model, latency=(*(p for p in model.latency if p[1] < largest), *edge))


class Profiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models of one device.

    stressors: how much slower a stressor gets beside another of its kind, each on half of the device, as a factor.
    """

    origin: Origin
    device: Device
    models: dict[str, ModelProfile]
    schema: int = SCHEMA
    note: str = ""
    stressors: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return self.origin == "measured"


def delayed(known: Profiles, ms: float) -> Profiles:
    """The profiles as seen from where every batch takes so many milliseconds more, to the device and back."""
    models = {}
    for name, model in known.models.items():
        later = tuple((share, batch, took + ms) for share, batch, took in model.latency)
        models[name] = msgspec.structs.replace(model, latency=later)
    return msgspec.structs.replace(known, models=models)


def parse(text: str, path: str) -> Profiles:
    """The profiles in ``text``: TOML if ``path`` ends so, else JSON. Raises ConfigError that names the model."""
    try:
        table: Any = toml_text.loads(text) if path.endswith(".toml") else from_json(text, Any)
        profiles = convert(table, Profiles)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:  # tomllib's, msgspec's
        hint = "see docs/serving/profiles.md for the format of profiles"
        raise ConfigError(f"not a profile file: {error}", path=path, hint=hint) from error
    problem = check(profiles)
    if problem:
        raise ConfigError(problem, path=path)
    return profiles


def check(profiles: Profiles) -> str | None:
    """What is wrong with the values, in one line; None if nothing is."""
    if profiles.schema != SCHEMA:
        return f"schema is {profiles.schema}; this version reads schema {SCHEMA}"
    device = profiles.device
    if device.sms < 1 or not 1 <= device.sm_step <= device.sms:
        return f"device: sms = {device.sms} with sm_step = {device.sm_step} is not valid"
    if not 0 <= device.groups <= device.sms // device.sm_step:
        return f"device: {device.groups} groups of {device.sm_step} SMs with {device.sms} SMs make no sense"
    if device.memory_mib <= 0 or device.context_mib < 0:
        return "device: memory must be positive"
    return next((problem for name, model in profiles.models.items() if (problem := _check_model(name, model))), None)


def _check_model(name: str, model: ModelProfile) -> str | None:
    try:
        _ = model.surface
    except ValueError as error:
        return f"model {name!r}: {error}"
    if min(model.weights_mib, model.activation_mib, model.variation) < 0:
        return f"model {name!r}: memory and variation cannot be negative"
    if model.variation > MOST:
        return f"model {name!r}: variation is {model.variation:g}, more than {MOST:g}"
    if not 0 <= model.sensitivity.beside <= MOST or model.pressure.beside:
        return f"model {name!r}: `beside` belongs to the sensitivity, and is between 0 and {MOST:g}"
    for what, vector in (("sensitivity", model.sensitivity), ("pressure", model.pressure)):
        for resource in RESOURCES:
            value = getattr(vector, resource)
            if not 0 <= value <= (1 if what == "pressure" else MOST):
                return f"model {name!r}: {what} to {resource} is {value:g}"
    return None


def render(profiles: Profiles) -> str:
    """JSON that parse() reads back; a line for each field of a model."""
    table: dict[str, Any] = msgspec.to_builtins(profiles)
    models = ",\n".join(
        f"  {_json(name)}: {{\n" + ",\n".join(f'   "{key}": {_json(value)}' for key, value in fields.items()) + "\n  }"
        for name, fields in table.pop("models").items()
    )
    head = "".join(f' "{key}": {_json(value)},\n' for key, value in table.items())
    return f'{{\n{head} "models": {{\n{models}\n }}\n}}\n'


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=-1).decode()
