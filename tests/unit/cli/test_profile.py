from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.cli.main import run
from gemlet.serve.profiles import profile, profile_files

if TYPE_CHECKING:
    import pytest


def test_modelled_profiles_say_so_and_can_be_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profiles.json"
    assert run(["profile", "--modelled", "resnet50", "vgg16", "-o", str(file)]) == 0
    assert "nothing in here was measured" in capsys.readouterr().err
    known = profile_files.load_profiles(file)
    assert known.origin == "modelled"
    assert set(known.models) == {"resnet50", "vgg16"}
    assert run(["profile", "--modelled", "bert"]) == 0
    assert set(profile.parse(capsys.readouterr().out, "stdout").models) == {"bert"}


def test_what_was_measured_is_not_replaced_by_what_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profiles.json"
    file.write_text("")  # as mktemp makes it
    assert run(["profile", "--modelled", "resnet50", "-o", str(file)]) == 0
    assert run(["profile", "--modelled", "vgg16", "-o", str(file)]) == 0
    file.write_text(profile.render(profile_files.load_profiles(Path("h200"))))
    capsys.readouterr()
    assert run(["profile", "--modelled", "resnet50", "-o", str(file)]) == 2
    assert "measured profiles" in capsys.readouterr().err
    assert profile_files.load_profiles(file).origin == "measured"
    assert run(["profile", "--modelled", "resnet50", "-o", str(file), "--fresh"]) == 0
    file.write_text("something else\n")
    assert run(["profile", "--modelled", "resnet50", "-o", str(file)]) != 0
    assert file.read_text() == "something else\n"


def test_a_repository_cannot_be_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--modelled", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "can only be measured" in said
    assert "resnet50" in said


def test_models_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--modelled", "resnet5"]) == 2
    assert "resnet5" in capsys.readouterr().err
    assert run(["profile", "resnet5", "-o", str(tmp_path / "p.json")]) == 2
    assert "neither a built-in model nor a directory" in capsys.readouterr().err
    assert run(["profile", str(tmp_path), "-o", str(tmp_path / "p.json")]) == 2
    assert "holds no model" in capsys.readouterr().err


def test_measuring_needs_a_file_and_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lenet1"]) == 2
    assert "-o FILE" in capsys.readouterr().err
    if importlib.util.find_spec("torch") is None:
        assert run(["profile", "lenet1", "-o", str(tmp_path / "p.json")]) != 0
        assert "--modelled" in capsys.readouterr().err


def test_the_list_names_every_built_in_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--list"]) == 0
    out = capsys.readouterr().out
    assert "resnet50" in out
    assert "GPT-2 small" in out
