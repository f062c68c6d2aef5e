"""`gemlet plan` and `gemlet simulate --serve` as commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from gemlet.cli import main
from gemlet.serve.plan.policies import POLICIES
from gemlet.serve.profiles import modelled, profile

if TYPE_CHECKING:
    from pathlib import Path

DEMANDS = """
duration = "1s"
[[model]]
name = "resnet50"
slo = "10ms"
rate = 2000
[[model]]
name = "dlrm"
slo = "5ms"
rate = 3000
"""


@pytest.fixture
def demands(tmp_path: Path) -> Path:
    path = tmp_path / "demands.toml"
    path.write_text(DEMANDS)
    return path


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main.run([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_a_plan_in_words_says_what_it_rests_on(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    code, out, err = ran(capsys, "plan", demands, "--why")
    assert code == 0
    assert "(modelled)" in out
    assert "the profiles are modelled, not measured" in err
    assert "resnet50" in out
    assert "a request that just missed one waits" in out


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    code, out, _ = ran(capsys, "plan", demands, "-o", "json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["result"], document["origin"]) == (1, "plan", "modelled")
    assert sum(gpu_let["sm"] for gpu in document["gpus"] for gpu_let in gpu["lets"]) <= 1


def test_no_plan_exits_with_1_and_says_why(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    code, out, err = ran(capsys, "plan", demands, "--policy", "exclusive", "-o", "json")
    assert code == 1
    assert json.loads(out)["result"] == "infeasible"
    assert "error: no plan: 2 GPUs are needed, there is 1" in err
    assert "hint: give --gpus 2" in err
    assert ran(capsys, "plan", demands, "--policy", "exclusive", "--gpus", 2)[0] == 0


def test_glets_files_go_in_and_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rates, models = tmp_path / "rates.csv", tmp_path / "ModelList.txt"
    rates.write_text("2\n7,2000,108,\n9,500,142,\n")
    code, out, _ = ran(capsys, "plan", rates, "-o", "glet", "--policy", "gpulet")
    assert code == 0
    models.write_text(out)
    assert ran(capsys, "plan", rates, "-o", "rates")[1] == rates.read_text()
    code, served, _ = ran(capsys, "simulate", "--serve", rates, "--plan", models, "--duration", "1s", "-o", "json")
    assert code == 0
    assert json.loads(served)["attainment"] > 0.99
    code, again, _ = ran(capsys, "plan", rates, "-o", "glet", "--policy", "static", "--previous", models)
    assert code == 0
    assert {line.split(",")[1] for line in again.splitlines()} == {line.split(",")[1] for line in out.splitlines()}


def test_a_picture(capsys: pytest.CaptureFixture[str], demands: Path, tmp_path: Path) -> None:
    assert ran(capsys, "plan", demands, "--svg", tmp_path / "plan.svg")[0] == 0
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


def test_the_list_of_policies(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "plan", "--policies")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(POLICIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nwya"], "did you mean nway?"),
        (["--quantile", "2"], "quantile 2"),
        (["--gpus", "0"], "'0' is not a number of devices"),
        (["--grid", "1000"], "expected from 1 to 100"),
        (["--profiles", "/nonexistent.json"], "/nonexistent.json: cannot be read"),
        (["--previous", "/nonexistent.json"], "/nonexistent.json: cannot be read"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], demands: Path, arguments: list[str], message: str) -> None:
    code, out, err = ran(capsys, "plan", demands, *arguments)
    assert code in {2, 125}
    assert out == ""
    assert message in err


def test_simulated_serving_says_simulated(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    code, out, _ = ran(capsys, "simulate", "--serve", demands)
    assert code == 0
    assert out.startswith("simulated, virtual time: 1 s")
    assert "p99" in out


def test_simulated_serving_as_json(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    code, out, _ = ran(capsys, "simulate", "--serve", demands, "-o", "json", "--duration", "500ms", "--peak")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["simulated"], document["profiles"]) == (1, True, "modelled")
    assert document["seconds"] == 0.5
    assert document["models"]["resnet50"]["sent"] == pytest.approx(1000, rel=0.2)
    assert document["highest_rate"] > 0.5


def test_simulated_serving_takes_profiles_and_a_spread(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    for more in ([], ["--replan"]):
        code, out, _ = ran(capsys, "simulate", "--serve", demands, "--profiles", "h200", "-o", "json", *more)
        assert (code, json.loads(out)["profiles"]) == (0, "measured")
        even, uneven = (
            json.loads(ran(capsys, "simulate", "--serve", demands, "--spread", spread, "-o", "json", *more)[1])
            for spread in ("profile", "measured")
        )
        assert uneven["models"]["resnet50"]["p99_ms"] > even["models"]["resnet50"]["p99_ms"]


def test_simulate_wants_one_file(capsys: pytest.CaptureFixture[str], demands: Path) -> None:
    assert ran(capsys, "simulate")[0] == 2
    assert ran(capsys, "simulate", demands, "--serve", demands)[0] == 2
    assert ran(capsys, "simulate", demands, "--profiles", "h200")[0] == 2
    assert ran(capsys, "simulate", "--serve", demands, "--policy", "exclusive")[0] == 1
    demands.with_name("list.txt").write_text("0,50,0,nobody,1,1\n")
    assert ran(capsys, "simulate", "--serve", demands, "--plan", demands.with_name("list.txt"))[0] == 125


@pytest.mark.parametrize("verb", ["plan", "simulate"])
def test_an_example_is_written_once_and_can_be_used(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "example.toml"
    assert main.run([verb, "--example", str(wanted)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"gemlet {verb} {wanted}" in said.err
    assert main.run([verb, str(wanted)]) == 0
    assert capsys.readouterr().out
    wanted.write_text("mine")
    assert main.run([verb, "--example", str(wanted)]) == 2
    assert wanted.read_text() == "mine"
    assert main.run([verb, "--example", str(tmp_path / "nowhere" / "example.toml")]) == 2


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Profiles of another kind of device, on which no model but resnet50 was measured."""
    fast = modelled.h200()
    device = msgspec.structs.replace(fast.device, name="slow")
    models = {"resnet50": fast.models["resnet50"]}
    path = tmp_path / "slow.json"
    path.write_text(profile.render(msgspec.structs.replace(fast, device=device, models=models)))
    return path


def test_devices_of_several_kinds(demands: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "plan", demands, "--gpus", f"h200=1,{slow}=2", "-o", "json")
    assert code == 0
    assert "the profiles of slow are modelled, not measured here" in err
    made = json.loads(out)
    assert {gpu["device"] for gpu in made["gpus"]} <= {"NVIDIA H200", "slow"}
    assert "not planned on slow, for which there is no profile: dlrm" in made["notes"]
    code, out, _ = ran(capsys, "plan", demands, "--gpus", f"h200=1,{slow}=2")
    assert code == 0
    assert "of the SMs, NVIDIA H200" in out
    for wrong in ("0", "h200=0", "h200", "h200=1,h200=1", "=1", "-1"):
        code, _, err = ran(capsys, "plan", demands, "--gpus", wrong)
        assert code == 2
        assert "is not a number of devices" in err
    code, _, err = ran(capsys, "plan", demands, "--gpus", "h200=1,h200.json=1", "--profiles", slow)
    assert code == 2
    assert "leave out --profiles" in err


def test_several_kinds_in_the_simulator(demands: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demands.write_text(DEMANDS.replace('duration = "1s"', f'duration = "1s"\ngpus = {{ h200 = 1, "{slow.name}" = 1 }}'))
    code, out, _ = ran(capsys, "simulate", "--serve", demands, "-o", "json")
    assert code == 0
    assert json.loads(out)["attainment"] > 0.9
    code, out, _ = ran(capsys, "simulate", "--serve", demands, "--replan", "--gpus", f"h200=1,{slow}=1", "-o", "json")
    assert code == 0
    assert json.loads(out)["attainment"] > 0.9
    code, out, _ = ran(capsys, "plan", demands, "-o", "json")
    plan = demands.with_name("plan.json")
    plan.write_text(out)
    code, out, _ = ran(capsys, "simulate", "--serve", demands, "--plan", plan, "-o", "json")
    assert code == 0
    code, _, err = ran(capsys, "simulate", "--serve", demands, "--plan", plan, "--gpus", f"{slow}=1,h200=1")
    assert code
    assert "is planned as" in err


@pytest.mark.parametrize("order", [["--policies", "-o", "json"], ["-o", "json", "--policies"]])
def test_the_policies_as_json(capsys: pytest.CaptureFixture[str], order: list[str]) -> None:
    code, out, _ = ran(capsys, "plan", *order)
    document = json.loads(out)
    assert (code, document["schema"]) == (0, 1)
    assert [policy["name"] for policy in document["policies"]] == list(POLICIES)


def test_what_is_no_form_of_a_list_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ran(capsys, "plan", "--policies", "-o", "glet")[0] == 2
    assert ran(capsys, "profile", "--list", "-o", tmp_path / "json")[0] == 2
    assert not list(tmp_path.iterdir())


def test_without_demands_there_is_nothing_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "plan")
    assert code == 2
    assert "missing argument 'DEMANDS'" in err


@pytest.mark.parametrize("gpus", ["9223372036854775808", "{ h200 = 1000000000000 }"])
def test_more_devices_than_a_plan_can_list_are_refused(
    demands: Path, capsys: pytest.CaptureFixture[str], gpus: str
) -> None:
    """One was an OverflowError, the other took all memory."""
    demands.write_text(f"gpus = {gpus}\n{DEMANDS}")
    code, _, err = ran(capsys, "plan", demands)
    assert code != 0
    assert "65536" in err
    code, _, err = ran(capsys, "plan", "--gpus", "9" * 20, demands)
    assert code == 2
    assert "at most 65536 of each" in err
