"""One model by itself: when its batches start, and what comes out."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from statistics import mean

import pytest

from gemlet.cli.main import run
from gemlet.errors import InvalidValue, UsageError
from gemlet.serve import standalone
from gemlet.serve.models.specification import ModelError
from gemlet.serve.server.backend_choice import Choice
from gemlet.serve.standalone import Order

CPU = Choice("cpu", (0,))


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("def infer(inputs): return {'Y': inputs['X'].repeat(2, axis=1)}")
    tensors = "[{name: %s, datatype: FP32, shape: [-1]}]"
    config = f"max_batch: 8\ninputs: {tensors % 'X'}\noutputs: {tensors % 'Y'}\n"
    (tmp_path / "m" / "config.yaml").write_text(config)
    return standalone.find(str(tmp_path / "m"))


def test_gaps_are_equal_or_drawn_from_the_seed():
    assert list(standalone.starts(Order(batch=1, count=3))) == [0, 0, 0]
    assert list(standalone.starts(Order(batch=1, count=3, gap_s=0.5))) == [0, 0.5, 1.0]
    order = Order(batch=1, count=4000, gap_s=0.1, poisson=True)
    drawn = list(standalone.starts(order))
    gaps = [later - earlier for earlier, later in pairwise(drawn)]
    assert mean(gaps) == pytest.approx(0.1, rel=0.1)
    assert max(gaps) > 0.4
    assert drawn == list(standalone.starts(order))


def test_every_batch_but_those_of_the_warm_up_is_told(spec):
    order = Order(batch=4, count=7, shapes={"X": (3,)})
    batches = asyncio.run(standalone.run(spec, CPU, order))
    assert len(batches) == 7
    assert all(0 <= each.computed_ms < each.total_ms for each in batches)
    assert [each.at_s for each in batches] == sorted(each.at_s for each in batches)


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (Order(batch=9, count=1, shapes={"X": (3,)}), UsageError, "takes at most 8 rows"),
        (Order(batch=1, count=1), InvalidValue, "the size in place of -1 is unknown"),
    ],
)
def test_what_the_model_cannot_take(spec, order, error, message):
    with pytest.raises(error, match=message):
        asyncio.run(standalone.run(spec, CPU, order))


def test_a_model_that_raises_is_an_error(spec, tmp_path):
    (tmp_path / "m" / "1" / "model.py").write_text("def infer(inputs): raise ValueError('no')")
    with pytest.raises(ModelError, match="ValueError: no"):
        asyncio.run(standalone.run(spec, CPU, Order(batch=1, count=1, shapes={"X": (3,)})))


def test_the_verb(spec, capsys):
    files = [spec.directory, "--executor", "cpu", "--shape", "X:3"]
    assert run(["infer", *files, "--count", "3", "-o", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines)) == ("at_s,computed_ms,total_ms", 4)
    assert run(["infer", *files, "--count", "2", "--batch", "2", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["batch"], told["executor"], len(told["batches"])) == ("m", 2, "cpu", 2)
    assert run(["infer", *files, "--count", "2"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["time", "computed", "total"]
    assert run(["infer", "nobody"]) == 2
    assert "'nobody' is neither a built-in model nor a directory" in capsys.readouterr().err


def test_a_builtin_model_takes_modelled_time():
    spec = standalone.find("lenet1")
    (batch,) = asyncio.run(standalone.run(spec, Choice("modelled", (0,)), Order(batch=1, count=1, share=0.5)))
    assert batch.computed_ms > 0
