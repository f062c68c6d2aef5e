"""Models that say themselves what they take and give, as they do for Triton."""

from __future__ import annotations

import json
import os

import pytest

from gemlet.serve.models.specification import TensorSpec
from gemlet.serve.server.repository import completion, tree
from tests.unit.serve.server.test_repository import wrong

COMPLETES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("words, not data")
        config.add_input({"name": "A", "data_type": "TYPE_INT64", "dims": [-1]})
        config.add_output({"name": "B", "data_type": "TYPE_STRING", "dims": [2]})
        config.set_max_batch_size(4)
        return config
"""


def test_a_model_completes_its_own_configuration(model):
    (model / "1" / "model.py").write_text(COMPLETES)
    (spec,) = tree.read_model(model)
    assert (spec.platform, spec.max_batch, spec.inputs) == ("triton_python", 4, (TensorSpec("A", "INT64", (-1,)),))
    assert json.loads(spec.configuration)["output"][0]["data_type"] == "TYPE_STRING"
    (model / "config.pbtxt").write_text("max_batch_size: 2\ninput { name: 'A' data_type: TYPE_INT64 dims: -1 }")
    (spec,) = tree.read_model(model)
    assert (spec.max_batch, len(spec.inputs), spec.outputs) == (2, 1, (TensorSpec("B", "BYTES", (2,)),))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise ValueError('none today')", "ValueError: none today"),
        ("config.add_input({'name': 'A', 'dim': 3})", "ValueError: an input has the property 'dim'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os; os._exit(5)", "the process ended with status 5"),
        ("return None", "auto_complete_config returned no configuration"),
    ],
)
def test_a_model_that_cannot_tell_its_configuration_is_an_error_of_that_model(model, code, why):
    (model / "1" / "model.py").write_text(COMPLETES.replace('print("words, not data")', code))
    assert f"its configuration cannot be told from its file: {why}" in str(wrong(model))


def test_a_model_that_ends_the_process_that_asks_it_has_told_nothing(model):
    (model / "1" / "model.py").write_text(COMPLETES.replace('print("words, not data")', "import os; os._exit(0)"))
    assert "its file ended the process that asked for its configuration" in str(wrong(model))


def test_nobody_waits_for_what_a_model_leaves_behind_that_was_asked_for_its_configuration(model, monkeypatch):
    gate = model / "gate"
    os.mkfifo(gate)
    forks = f"import os; os.fork() or (open({str(gate)!r}).read(), os._exit(0))"
    (model / "1" / "model.py").write_text(COMPLETES.replace('print("words, not data")', forks))
    monkeypatch.setattr(completion, "PATIENCE_S", 30.0)
    try:
        (spec,) = tree.read_model(model)
    finally:
        os.close(os.open(gate, os.O_RDWR))  # the child has all files of its parent until then
    assert spec.max_batch == 4
