"""Models that ask other models while they work, each with a gpu-let of its own: none waits for what waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.serve_process import serving
from tests.e2e.test_serve_life import ask

CONFIG = """
backend: "python"
max_batch_size: 4
input [{ name: "X", data_type: TYPE_FP32, dims: [ 1 ] }]
output [{ name: "Y", data_type: TYPE_FP32, dims: [ 1 ] }]
"""
# Y = how many models there are below, X being how many there are to be. Each asks the next one, in the order given.
CODE = """
import numpy as np
import time
import triton_python_backend_utils as pb_utils

NEXT = {next!r}

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (x,) = (tensor.as_numpy() for tensor in request.inputs())
        time.sleep({sleep})
        if NEXT is None or not x.max() > 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros_like(x))])
        asked = pb_utils.InferenceRequest(
            model_name=NEXT, requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x - 1)]
        )
        answer = asked.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", answer.output_tensors()[0].as_numpy() + 1)])
"""


def write(repository, name, following, sleep=0.0):
    folder = Path(repository, name)
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(CODE.format(next=following, sleep=sleep))


def number(told):
    status, body, _ = told
    assert status == 200, body
    return body["outputs"][0]["data"][0]


@pytest.fixture
def circle(tmp_path):
    write(tmp_path / "models", "a", "b")
    write(tmp_path / "models", "b", "a")
    with serving(tmp_path / "models", tmp_path / "log", "--hang", "20") as server:
        yield server


def test_models_that_ask_each_other_are_answered(circle):
    assert number(ask(circle, "a", 5.0)) == 5


def test_models_that_ask_each_other_without_end_are_told_so_at_once(circle):
    status, body, _ = ask(circle, "a", 1e6)
    assert status == 500
    assert "deep: a -> b -> a -> b" in body["error"]
    assert number(ask(circle, "b", 3.0)) == 3
    assert "killed" not in circle.log


def test_many_that_ask_in_both_directions_do_not_wait_for_each_other(circle):
    with ThreadPoolExecutor(24) as pool:
        asked = [(name, float(depth)) for depth in range(8) for name in "ab" for _ in range(8)]
        told = pool.map(lambda each: number(ask(circle, *each)), asked)
        assert list(told) == [depth for _, depth in asked]
    assert "killed" not in circle.log
