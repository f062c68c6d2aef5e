"""The executor's process from inside: what it does with its arena."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gemlet.serve.execution import arena
from gemlet.serve.execution.worker import Worker
from gemlet.serve.models.specification import ModelError
from tests.unit.serve.stand_in import model


@pytest.mark.parametrize("outputs", [{}, {"Z": np.array([["x"]])}], ids=["missing", "not numbers"])
def test_outputs_of_a_model_that_fails_half_way_leave_nothing_in_the_arena(outputs):
    descriptor = arena.create(1 << 16)
    outputs_arena = arena.Arena(descriptor)
    os.close(descriptor)
    worker = Worker(None, None, None, outputs_arena)
    spec = model(outputs=(("Y", "FP32", (-1,)), ("Z", "FP32", (-1,))))
    with pytest.raises(ModelError):
        worker._placed(spec, {"Y": np.zeros((1, 4), dtype=np.float32)} | outputs)
    assert outputs_arena.used == 0
    outputs_arena.close()
