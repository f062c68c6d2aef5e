"""On what a server runs: devices of kinds that the command line or the demand file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemlet.cli import serve
from gemlet.errors import UsageError
from gemlet.serve.profiles import kinds, profile
from gemlet.serve.server import serving_plan
from gemlet.serve.server.backend_choice import Choice
from gemlet.serve.server.options import ServerOptions
from gemlet.serve.server.serving_plan import ServingPlan
from tests.unit.serve.cases import scaling, world
from tests.unit.serve.stand_in import Service, model
from tests.unit.serve.two_kinds import named


@pytest.fixture
def folder(tmp_path):
    for name in ("one", "other"):
        (tmp_path / f"{name}.json").write_text(profile.render(named(world(m=scaling(1.0)), name)))
    (tmp_path / "demands.toml").write_text(
        'gpus = { "one.json" = 1, "other.json" = 2 }\n[[model]]\nname = "m"\nslo = "10ms"\nrate = 1\n'
    )
    return tmp_path


def options(**more):
    return ServerOptions(repository=Path("/nowhere"), executor="modelled", **more)


def test_kinds_of_the_demand_file(folder):
    demand = folder / "demands.toml"
    choice, known = serving_plan.choose(options(demand=demand), None)
    assert choice.devices == (0, 1, 2)
    assert isinstance(known, kinds.ProfilesByKind)
    assert known.devices == {0: "one", 1: "other", 2: "other"}
    choice, known = serving_plan.choose(options(demand=demand, profiles=folder / "one.json", devices=(4,)), None)
    assert (choice.devices, known) == ((4,), None)
    with pytest.raises(UsageError, match="both say which devices"):
        serving_plan.choose(options(demand=demand, devices=(0,)), None)


def test_profiles_of_one_kind_say_nothing_of_the_others_on_a_mixed_host(folder, monkeypatch, caplog):
    profiles = folder / "one.json"

    def known(*names):
        monkeypatch.setattr(serving_plan.backend_choice, "gpu_names", lambda: names)
        choice = Choice("green", tuple(range(len(names))))
        return ServingPlan(options(profiles=profiles), choice, Service(model("m", platform="python")).engine)

    made = known("one", "NVIDIA A100")
    assert isinstance(made.known, kinds.ProfilesByKind)
    assert made.known.devices == {0: "one", 1: "NVIDIA A100"}
    assert made.basis()["profiles"] == "one: modelled; NVIDIA A100: none"
    assert list(kinds.on(made.known, 1).models) == []
    assert caplog.text == ""
    assert known("one", "one").known.device.name == "one"
    assert known("NVIDIA A100", "NVIDIA H100").known.device.name == "one"
    assert "the profiles are of one, and are taken to hold for NVIDIA A100 and NVIDIA H100" in caplog.text


def test_kinds_of_the_command_line_go_before_and_not_with_ray(folder):
    counts = {str(folder / "other.json"): 1}
    choice, known = serving_plan.choose(options(demand=folder / "demands.toml", gpus=counts), None)
    assert choice.devices == (0,)
    assert known.device.name == "other"
    with pytest.raises(UsageError, match="Ray does not say of which kind"):
        serving_plan.choose(options(gpus=counts), object())


def test_what_says_the_same_twice_is_refused():
    assert serve._devices(None, {"devices": (1,), "profiles": None}) == {}
    assert serve._devices(2, {"devices": None, "profiles": Path("h200")}) == {"devices": (0, 1)}
    assert serve._devices({"h200": 1}, {"devices": None, "profiles": None}) == {"gpus": {"h200": 1}}
    for gpus, given, name in (
        (2, {"devices": (0,), "profiles": None}, "devices"),
        ({"h200": 1}, {"devices": None, "profiles": Path("h200")}, "profiles"),
    ):
        with pytest.raises(UsageError, match=f"--gpus and --{name} say the same"):
            serve._devices(gpus, given)
