"""The models that are built from code: they are what their names say, and need torch to be made."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gemlet.serve.models import built_in
from gemlet.serve.models.specification import ModelError, ModelSpec, TensorSpec
from gemlet.serve.profiles import modelled
from gemlet.serve.server.repository import tree

if TYPE_CHECKING:
    from pathlib import Path

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not has_torch, reason="torch is not installed: models are neither made nor run")

# Weights and biases of the published models, in thousands; the decoder shares its embedding with its output.
PARAMETERS = {
    "lenet1": 62, "googlenet": 6_625, "resnet50": 25_557, "vgg16": 138_358, "mobilenet_v2": 3_505, "mnasnet1_0": 4_383,
    "densenet161": 28_681, "bert": 109_482, "decoder": 124_440,
}  # fmt: skip


def test_names_are_those_of_the_modelled_profiles() -> None:
    assert set(modelled.ARCHITECTURES) <= set(built_in.BUILT_IN)
    assert set(built_in.DEFAULT) <= set(built_in.BUILT_IN)
    assert {built_in.SAME.get(name, name) for name in modelled.ARCHITECTURES} <= set(built_in.DEFAULT)


def test_a_repository_needs_not_describe_a_built_in_model() -> None:
    bare = ModelSpec(name="mine", directory="/m", platform="builtin", parameters={"model": "bert"}, max_batch=4)
    full = built_in.completed(bare)
    assert full.inputs == (TensorSpec("input_ids", "INT64", (128,)),)
    assert full.max_batch == 4
    assert built_in.completed(full) is full
    with pytest.raises(ModelError, match="no built-in model is called 'brt'"):
        built_in.completed(ModelSpec(name="brt", directory="", platform="builtin"))


def test_the_catalogue_imports_no_torch() -> None:
    code = "import sys, gemlet.serve.models.built_in, gemlet.serve.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_torch
@pytest.mark.parametrize("name", built_in.DEFAULT)
def test_models_answer_in_the_shapes_they_declare(name: str) -> None:
    import torch

    from gemlet.serve.models import build

    types = {"UINT8": torch.uint8, "INT64": torch.int64, "FP32": torch.float32}
    entry = built_in.BUILT_IN[name]
    model = build(name)
    chance = torch.Generator().manual_seed(1)
    inputs = [
        torch.randint(0, entry.below, (2, *tensor.shape), generator=chance).to(types[tensor.datatype])
        for tensor in entry.inputs
    ]
    with torch.inference_mode():
        result = model(*inputs)
        again = model(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    for output, tensor in zip(outputs, entry.outputs, strict=True):
        assert tuple(output.shape) == (2, *tensor.shape)
        assert output.dtype == types[tensor.datatype]
        assert torch.isfinite(output.double()).all()
    assert torch.equal(outputs[0], (again if isinstance(again, tuple) else (again,))[0])
    if name in PARAMETERS:
        count = sum(each.numel() for each in model.parameters()) // 1000
        assert abs(count - PARAMETERS[name]) <= 1


@needs_torch
def test_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    import torch

    from gemlet.serve.models import build

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = (next(build("lenet1").network.parameters()) for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(one, next(build("lenet2").network.parameters()))


def test_a_repository_of_built_in_models_needs_one_line_each(tmp_path: Path) -> None:
    for name, text in (("bert", "platform: builtin\n"), ("wrong", "platform: builtin\nparameters: {model: brt}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    entries = tree.scan(tmp_path)
    (spec,) = entries["bert"].specs
    assert spec.max_batch == built_in.BUILT_IN["bert"].max_batch
    assert spec.outputs == built_in.BUILT_IN["bert"].outputs
    error = entries["wrong"].error
    assert error is not None
    assert "no built-in model is called 'brt'" in str(error)
    assert str(tmp_path / "wrong" / "config.yaml") in str(error)
