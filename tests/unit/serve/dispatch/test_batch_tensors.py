"""What the event loop does with the tensors of a batch takes no time by what is in them, and there is room for them."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import pytest

from gemlet.serve.dispatch import batch_tensors
from gemlet.serve.dispatch.call import Call, Tensor
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.execution import arena, protocol
from gemlet.serve.execution.backends import noop
from gemlet.serve.execution.worker import Worker
from gemlet.serve.models.specification import ModelError
from tests.unit.serve.stand_in import Service, model

TEXT = model("text", platform="python", outputs=(("Y", "BYTES", (2,)),))


def test_outputs_of_text_are_parted_without_a_look_at_their_elements():
    rows = [b"\xff" * 8, b"\xff" * 4, b"\xff" * 12]  # which are none
    output = protocol.ArenaTensor("Y", "BYTES", (3, 2), -1, 24, of_rows=(8, 4, 12))
    (first,), (second,) = batch_tensors.parted(TEXT, [(output, b"".join(rows))], [1, 2])
    assert (first.shape, bytes(first.data)) == ((1, 2), rows[0])
    assert (second.shape, bytes(second.data)) == ((2, 2), rows[1] + rows[2])


@pytest.mark.parametrize("nbytes", [0, protocol.SMALL_BYTES], ids=["small", "in the arena"])
def test_an_executor_says_how_long_each_row_of_text_is(nbytes):
    descriptor = arena.create(1 << 16)
    outputs = arena.Arena(descriptor)
    os.close(descriptor)
    array = np.array([[b"", "\u00e9"], [b"x" * nbytes, b"\0"], [b"a\0", b"bc"]], dtype=object)
    (placed,) = Worker(None, mock.Mock(), None, outputs)._placed(TEXT, {"Y": array})
    assert placed.of_rows == (4 + 4 + 2, 4 + nbytes + 4 + 1, 4 + 2 + 4 + 2)
    assert (sum(placed.of_rows), placed.offset >= 0) == (placed.nbytes, nbytes > 0)
    outputs.close()


@pytest.mark.parametrize("datatype", ["BYTES", "FP64"])
def test_zeros_for_which_there_is_no_room_are_an_error_at_once(datatype):
    spec = model("zeros", outputs=(("Y", datatype, (1 << 40, 1 << 40)),))
    with pytest.raises(ModelError, match="have no room"):
        noop.zeros(spec, spec.outputs[0], 1)
    service, told = Service(spec), []
    service.engine.infer(Call("zeros", [Tensor("X", "FP32", (1, 1), bytes(4))], told.append, now_ms()))
    (refusal,) = told
    assert refusal.reason == "failed"
    assert "have no room" in refusal.message
    assert service.engine.in_flight == 0


def test_zeros_of_text_are_as_many_empty_elements():
    spec = model("zeros", outputs=(("Y", "BYTES", (2, -1)),))
    (output,) = batch_tensors.echoed(spec, [Tensor("X", "FP32", (3, 1), bytes(12))], 3)
    assert (output.shape, bytes(output.data)) == ((3, 2, 1), bytes(4 * 6))
