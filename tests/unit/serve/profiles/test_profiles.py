"""The profile format, and that nothing modelled passes for measured."""

from __future__ import annotations

import msgspec
import pytest

from gemlet.errors import ConfigError
from gemlet.serve.profiles import modelled
from gemlet.serve.profiles.profile import ModelProfile, Vector, limited, parse, render

TOML = """
schema = 1
origin = "measured"
[device]
name = "A"
sms = 10
sm_step = 1
memory_mib = 1000
driver = "1.2"
versions = { cuda = "13.0" }
[models.m]
latency = [[0.5, 1, 2.0], [1.0, 1, 1.0]]
sensitivity = { dram = 1.5 }
pressure = { dram = 0.5, compute = 0.25 }
"""


def test_toml_and_json_say_the_same() -> None:
    profiles = parse(TOML, "a.toml")
    assert parse(render(profiles), "a.json") == profiles
    assert profiles.measured
    assert profiles.models["m"].surface.latency(0.5, 1) == 2.0
    assert profiles.models["m"].pressure == Vector(dram=0.5, compute=0.25)


def test_modelled_profiles_say_so_and_survive_a_round_trip() -> None:
    profiles = modelled.h200()
    assert profiles.origin == "modelled"
    assert not profiles.measured
    assert "(modelled)" in profiles.device.name
    assert "nothing in here was measured" in profiles.note
    assert parse(render(profiles), "x.json") == profiles


def test_a_modelled_gpu_has_no_use_for_more_sms_than_a_batch_can_fill() -> None:
    lenet = modelled.h200().models["lenet1"].surface
    assert lenet.latency(0.125, 1) == pytest.approx(lenet.latency(1.0, 1), rel=0.01)
    vgg = modelled.h200().models["vgg16"].surface
    assert vgg.latency(0.25, 32) > 3 * vgg.latency(1.0, 32)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 9", "schema is 9"),
        ('"measured"', '"guessed"', "origin"),
        ("sms = 10", "sms = 0", "sms = 0"),
        ("sm_step = 1", "sm_step = 3\ngroups = 4", "4 groups of 3 SMs"),
        ("memory_mib = 1000", "memory_mib = -1", "memory must be positive"),
        ("[1.0, 1, 1.0]", "[1.0, 1, -1.0]", "model 'm': the latency"),
        ("[1.0, 1, 1.0]", "[2.0, 1, 1.0]", "model 'm': an anchor's SM share"),
        ("dram = 1.5", "dram = -1", "sensitivity to dram"),
        ("compute = 0.25", "compute = 1.25", "pressure to compute"),
        ("dram = 1.5", "dram = 1e308", "sensitivity to dram"),
        ("dram = 1.5", "beside = 1e308", "`beside` belongs to the sensitivity"),
        ("[models.m]", "[models.m]\nvariation = 1e308", "variation is 1e\\+308"),
        ("compute = 0.25", "computing = 0.25", "computing"),
        ("compute = 0.25", "beside = 0.25", "`beside` belongs to the sensitivity"),
        ("dram = 1.5", "beside = -1", "`beside`"),
        ("sm_step = 1", "sm_step = 1\ngroups = 11", "11 groups of 1 SMs with 10 SMs"),
        ("schema = 1", "schema = ", "not a profile file"),
    ],
)
def test_bad_profiles(old: str, new: str, message: str) -> None:
    assert old in TOML
    with pytest.raises(ConfigError, match=message) as caught:
        parse(TOML.replace(old, new), "a.toml")
    assert caught.value.path == "a.toml"


def test_invalid_json() -> None:
    with pytest.raises(ConfigError, match="not a profile file"):
        parse("{", "a.json")


def test_a_model_without_interference_needs_no_vectors() -> None:
    assert msgspec.convert({"latency": [[1.0, 1, 1.0]]}, ModelProfile).sensitivity == Vector()


def test_a_model_that_takes_smaller_batches_is_known_up_to_those() -> None:
    model = modelled.h200().models["resnet50"]
    small = limited(model, 24)
    assert small.surface.max_batch == 24
    for share in (0.2, 0.5, 1.0):
        for batch in (1, 8, 24):
            assert small.surface.latency(share, batch) == pytest.approx(model.surface.latency(share, batch), rel=0.02)
    assert limited(model, model.surface.max_batch) is model
    assert limited(model, 1).surface.max_batch == 1
