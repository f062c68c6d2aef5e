"""Demand files, glet's files and plans: in, out, and what is said of bad ones."""

from __future__ import annotations

import errno
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemlet.serve
from gemlet.config import text_file
from gemlet.errors import ConfigError, InvalidValue, UsageError
from gemlet.load import arrivals
from gemlet.serve.plan import demand_file, glet_files, picture, plan_files
from gemlet.serve.plan.model import Demand, Inventory, Plan, PlanOptions
from gemlet.serve.plan.planner import plan
from gemlet.serve.profiles import kinds, modelled, profile
from tests.unit.serve.cases import demand, scaling, world
from tests.unit.serve.two_kinds import named, two

H200 = modelled.h200()
EXAMPLES = Path(gemlet.serve.__file__).parent / "examples"
TEXT = """
gpus = 3
duration = "5s"
[options]
quantile = 0.9
[[model]]
name = "resnet50"
slo = "25ms"
rate = 100
[[model]]
name = "bert"
slo = "0.1s"
rate = { mean = 50, swing = 0.5, period = "4s" }
arrivals = "gamma"
variation = 3.0
"""


def read(name: str) -> str:
    return {"flux.txt": "10\n30\n", "rates.csv": "second,resnet50\n0,5\n1,7\n"}[name]


def test_a_demand_file() -> None:
    service = demand_file.parse(TEXT, "x.toml", read)
    assert (service.gpus, service.seconds, service.options.quantile) == (3, 5.0, 0.9)
    assert service.demands == (
        Demand(model="resnet50", rate=100, slo_ms=25),
        Demand(model="bert", rate=pytest.approx(75, rel=1e-3), slo_ms=100, variation=3.0),
    )
    assert service.models[1].rate == arrivals.Sinusoid(50, 0.5, 4.0)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ('{ at = ["0s", "2s"], rates = [1, 9] }', arrivals.Steps((0, 2), (1, 9))),
        ('{ file = "flux.txt" }', arrivals.Steps((0, 20), (10, 30))),
        ('{ file = "flux.txt", step = "1s" }', arrivals.Steps((0, 1), (10, 30))),
        ('{ file = "rates.csv" }', arrivals.Steps((0, 1), (5, 7))),
    ],
)
def test_rates_that_change(rate: str, expected: arrivals.Rate) -> None:
    service = demand_file.parse(TEXT.replace("rate = 100", f"rate = {rate}"), "x.toml", read)
    assert service.models[0].rate == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate = 100", "rate = -1", r"x.toml:6: model 'resnet50': the rate is -1"),
        ("rate = 100", 'rate = "fast"', r"x.toml:9: model 1.rate"),
        ("rate = 100", "rate = { swing = 1 }", r"x.toml:6: .*rate is a number, or"),
        ("rate = 100", 'rate = { at = ["0s"], rates = [1, 2] }', "1 times and 2 rates"),
        ('slo = "25ms"', 'slo = "25"', r"x.toml:6: .*'25' is not a duration"),
        ('slo = "25ms"', 'slo = "0ms"', r"x.toml:6: .*SLO of 0"),
        ('slo = "25ms"', 'slos = "25ms"', r"x.toml:8: .*unknown field `slos`"),
        ("variation = 3.0", "", "add the variation"),
        ('arrivals = "gamma"', "", "remove variation"),
        ("variation = 3.0", "variation = 0", "not above 0"),
        ('arrivals = "gamma"', 'arrivals = "bursty"', r"x.toml:14: .*arrivals"),
        ('duration = "5s"', 'duration = "0s"', "expected more than 0"),
        ("gpus = 3", "gpus = ", "x.toml"),
        ("quantile = 0.9", "quantil = 0.9", "quantil"),
    ],
)
def test_bad_demand_files(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=message) as caught:
        demand_file.parse(TEXT.replace(old, new, 1), "x.toml", read)
    assert caught.value.hint or "x.toml" in str(caught.value)


def test_the_way_to_the_executor_takes_time_unless_it_is_said_to_take_none() -> None:
    text = "[[model]]\nname = 'resnet50'\nslo = '20ms'\nrate = 100\n"

    def hop(line: str) -> float:
        return demand_file.parse(line + text, "x.toml", read).hop_ms

    assert hop("") == pytest.approx(0.4)
    assert hop("hop = '0s'\n") == 0.0
    assert hop("hop = '250us'\n") == pytest.approx(0.25)
    with pytest.raises(ConfigError, match="hop: 'soon' is not a duration"):
        hop("hop = 'soon'\n")


def test_devices_of_several_kinds_are_named_by_their_profiles(tmp_path: Path) -> None:
    slow = named(H200, "slow")
    (tmp_path / "slow.json").write_text(profile.render(slow))
    text = TEXT.replace("gpus = 3\n", "")
    path = tmp_path / "demands.toml"
    path.write_text('gpus = { h200 = 2, "slow.json" = 1 }\n' + text)
    service = demand_file.parse(path.read_text(), "x.toml", read)
    assert (service.gpus, service.kinds) == (3, {"h200": 2, "slow.json": 1})
    known, count = plan_files.load_known(service, tmp_path, None, None)
    assert count == 3
    assert isinstance(known, kinds.ProfilesByKind)
    assert known.devices == {0: "NVIDIA H200", 1: "NVIDIA H200", 2: "slow"}
    # The command line goes before the file.
    known, count = plan_files.load_known(service, tmp_path, tmp_path / "slow.json", None)
    assert (known, count) == (slow, None)
    known, count = plan_files.load_known(service, tmp_path, None, {str(tmp_path / "slow.json"): 4})
    assert (known, count) == (slow, 4)
    with pytest.raises(UsageError, match="names the profiles of each kind already"):
        plan_files.load_known(service, tmp_path, tmp_path / "slow.json", {"h200": 1})
    for line in ("gpus = { h200 = 0 }\n", 'gpus = { h200 = 1 }\nprofiles = "h200"\n'):
        with pytest.raises(ConfigError, match="gpus"):
            demand_file.parse(line + text, "x.toml", read)


def test_a_plan_for_other_kinds_of_device_is_refused(tmp_path: Path) -> None:
    known, there = two({"a": scaling(1.0)}, {"a": scaling(2.0)})
    made = plan(known, [demand("a", 400, 100)], there)
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(made))
    assert plan_files.load_plan(path, known, ()) == made
    turned, _ = two({"a": scaling(1.0)}, {"a": scaling(2.0)}, (0, 2))
    with pytest.raises(ConfigError, match="GPU 0 is planned as one, and is other"):
        plan_files.load_plan(path, turned, ())
    with pytest.raises(ConfigError, match="GPU 0 is planned as one, and is of the only kind"):
        plan_files.load_plan(path, H200, ())


def test_a_misspelt_key_has_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        demand_file.parse(TEXT.replace("slo =", "sloo =", 1), "x.toml", read)
    assert caught.value.hint == "did you mean slo?"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_can_be_planned(example: Path) -> None:
    service = plan_files.load_service(example)
    assert isinstance(plan(H200, service.demands, Inventory(gpus=service.gpus)), Plan)


def test_glets_rates() -> None:
    demands = glet_files.parse_rates("3\n0,100,5,\n7,50,108,\n13,20,22\n", "rates.csv")
    assert demands == (demand("lenet1", 100, 5), demand("resnet50", 50, 108), demand("bert", 20, 22))
    assert glet_files.render_rates(demands) == "3\n0,100,5,\n7,50,108,\n13,20,22,\n"


@given(
    st.lists(
        st.builds(
            Demand,
            model=st.sampled_from(glet_files.MODELS),
            rate=st.integers(0, 10**6).map(float),
            slo_ms=st.integers(1, 10**4).map(float),
        )
    )
)
def test_glets_rates_round_trip(demands: list[Demand]) -> None:
    assert list(glet_files.parse_rates(glet_files.render_rates(demands), "x")) == demands


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: empty"),
        ("seven\n", "x:1: 'seven'"),
        ("2\n7,1,1,\n", "announces 2 lines and has 1"),
        ("1\n7,1\n", "x:2: 2 numbers"),
        ("1\n7,one,1,\n", "x:2: .*not three numbers"),
        ("1\n14,1,1,\n", "x:2: there is no model id 14"),
        ("1\n7,-1,1,\n", "x:2: the rate is -1"),
        ("1\n7,1,0,\n", "x:2: the SLO is 0"),
        ("1\n7,nan,10,\n", "x:2: the rate is nan"),
    ],
)
def test_bad_rates(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        glet_files.parse_rates(text, "x")


def test_a_model_that_glet_has_not() -> None:
    with pytest.raises(InvalidValue, match="dlrm"):
        glet_files.render_rates([demand("dlrm", 1, 1)])


def test_model_list_by_hand() -> None:
    text = """0,60,0,resnet50,16,20
0,60,0,bert,4,20
0,40,0,vgg16,8,12.5
0,20,0,reserved,0,0
1,50,0,vgg16,8,0
1,50,1,vgg16,8,0
"""
    made = glet_files.parse_model_list(text, "x", H200, [demand("resnet50", 1, 108)])
    sizes = [[(gpu_let.sm, [t.model for t in gpu_let.tasks]) for gpu_let in gpu.gpu_lets] for gpu in made.gpus]
    assert sizes == [[(0.6, ["resnet50", "bert"]), (0.4, ["vgg16"])], [(0.5, ["vgg16"]), (0.5, ["vgg16"])]]
    first = made.gpus[0].gpu_lets[0].tasks[0]
    assert (first.rate, first.slo_ms) == (800.0, 108)  # 16 every 20 ms


@pytest.mark.parametrize("policy", ["exclusive", "timeshare", "gpulet", "static", "nway"])
def test_model_list_round_trip(policy: str) -> None:
    wanted = [demand("resnet50", 9000, 20), demand("vgg16", 2000, 30), demand("bert", 300, 40)]
    made = plan(H200, wanted, Inventory(gpus=4), None, PlanOptions(grid=20), policy=policy)
    assert isinstance(made, Plan)
    text = glet_files.render_model_list(made)
    back = glet_files.parse_model_list(text, "x", H200, wanted)
    assert sorted(_sizes_of_all(back)) == sorted(_sizes_of_all(made))
    assert sorted(
        _sizes_of_all(glet_files.parse_model_list(glet_files.render_model_list(back), "x", H200, wanted))
    ) == (sorted(_sizes_of_all(made)))


def _sizes_of_all(made: Plan) -> list[tuple[int, float, list[tuple[str, int]]]]:
    return [
        (gpu.index, round(gpu_let.sm, 6), [(task.model, task.batch) for task in gpu_let.tasks])
        for gpu in made.gpus
        for gpu_let in gpu.gpu_lets
    ]


def test_an_empty_model_list() -> None:
    made = glet_files.parse_model_list("EMPTY\n", "x", H200, [])
    assert made.gpus == ()
    assert glet_files.render_model_list(made) == "EMPTY\n"


@pytest.mark.parametrize(
    "line", ["0,60,0,resnet50,16", "0,0,0,resnet50,16,1", "0,101,0,resnet50,1,1", "a,60,0,resnet50,16,1",
             "0,60,0,resnet50,0,1", "0,60,0,resnet50,1,-1", "-1,60,0,resnet50,1,1", "0,60,0,resnet50,1,1,7", "0,60"],
)  # fmt: skip
def test_bad_model_lists(line: str) -> None:
    with pytest.raises(ConfigError, match=r"x:2: .*is not a valid gpu-let"):
        glet_files.parse_model_list(f"0,50,0,bert,1,1\n{line}\n", "x", H200, [])


def test_a_model_list_of_an_unknown_model() -> None:
    with pytest.raises(ConfigError, match="x:1: no profile of model 'resnet'"):
        glet_files.parse_model_list("0,60,0,resnet,16,1\n", "x", H200, [])


def test_a_plan_as_json_round_trip(tmp_path: Path) -> None:
    made = plan(H200, [demand("resnet50", 9000, 20)], Inventory(gpus=4))
    assert isinstance(made, Plan)
    path = tmp_path / "plan.json"
    text_file.write_text(path, msgspec.json.encode(made).decode())
    assert plan_files.load_plan(path, H200, ()) == made
    path.write_text('{"result": "plan"}')
    with pytest.raises(ConfigError, match="not a plan"):
        plan_files.load_plan(path, H200, ())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        plan_files.load_service(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match="UTF-8"):
        plan_files.load_service(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match="cannot be written"):
        text_file.write_text(tmp_path / "no" / "x.svg", "")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "plan.svg", tmp_path / "link.svg"
    link.symlink_to(path)
    text_file.write_text(path, "old")
    text_file.write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    with pytest.raises(ConfigError, match="No space left"):
        text_file.write_text(Path("/dev/full"), "more")

    def full(file: Path, text: str, **_: object) -> None:
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left"):
        text_file.write_text(path, "more")
    assert path.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_trace_is_looked_for_beside_the_demand_file(tmp_path: Path) -> None:
    (tmp_path / "flux.txt").write_text("10\n20\n")
    (tmp_path / "x.toml").write_text('[[model]]\nname = "bert"\nslo = "50ms"\nrate = { file = "flux.txt" }\n')
    assert plan_files.load_service(tmp_path / "x.toml").models[0].rate == arrivals.Steps((0, 20), (10, 20))


def test_pictures_show_every_gpu_let() -> None:
    profiles = world(**{"a<b": scaling(1.0), "c": scaling(1.0)})
    made = plan(
        profiles, [demand("a<b", 450, 10), demand("c", 1250, 10)], Inventory(gpus=4), None, PlanOptions(quantile=0.5)
    )
    assert isinstance(made, Plan)
    gpu_lets = [gpu_let for gpu in made.gpus for gpu_let in gpu.gpu_lets]
    root = ElementTree.fromstring(picture.svg(made))
    for group in root.iter("{http://www.w3.org/2000/svg}g"):  # labels are cut by an svg of their block's size
        blocks, labels = (list(group.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("rect", "svg"))
        assert {(label.get("x"), label.get("width")) for label in labels} <= {
            (block.get("x"), block.get("width")) for block in blocks
        }
        assert len(list(group.findall("{http://www.w3.org/2000/svg}text"))) == 0
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["; ".join(gpu_let.why) for gpu_let in gpu_lets]
    lines = picture.lines(made)
    assert len(lines) == len(made.gpus)
    assert sum(line.count("▕") - 1 for line in lines) == len(gpu_lets)
    assert "modelled" in picture.title(made)


def test_a_bar_is_as_long_as_the_device_is_full() -> None:
    made = plan(world(a=scaling(1.0)), [demand("a", 495, 30)], Inventory(gpus=1), None, PlanOptions(quantile=0.5))
    assert isinstance(made, Plan)
    (line,) = picture.lines(made)
    assert abs(line.count("·") - picture.WIDTH / 2) <= 1
