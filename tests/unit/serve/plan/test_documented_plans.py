"""The plans in docs/serving/plan.md are what its commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemlet.cli.main import run

PAGE = Path(__file__).parents[4] / "docs" / "serving" / "plan.md"
TWO = '[[model]]\nname = "{}"\nslo = "25ms"\nrate = {}\n'


def shown():
    """The plans on the page, without their indentation."""
    plans, lines = [], iter(PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith("    nway+type on"):
            plans.append([line[4:]])
            for following in lines:
                if following and not following.startswith("    "):
                    break
                plans[-1].append(following[4:])
                if "note: planned for" in following:
                    break
    return ["\n".join(each) for each in plans]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("here")
def test_the_example(capsys):
    assert run(["plan", "--example", "traffic.toml"]) == 0
    capsys.readouterr()
    assert run(["plan", "traffic.toml"]) == 0
    assert capsys.readouterr().out.strip() == shown()[0]


@pytest.mark.usefixtures("here")
def test_two_models(capsys):
    Path("two.toml").write_text(TWO.format("resnet50", 200) + TWO.format("vgg16", 100))
    assert run(["profile", "--modelled", "resnet50", "vgg16", "-o", "two.json"]) == 0
    capsys.readouterr()
    assert run(["plan", "two.toml", "--profiles", "two.json"]) == 0
    assert capsys.readouterr().out.strip() == shown()[1]
