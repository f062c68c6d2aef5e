"""Classes in the place of outputs: of what has an order, and of nothing else."""

from __future__ import annotations

import struct

import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.server.frontend.answer_form import classify


def test_the_highest_values_of_each_row():
    data = struct.pack("<4e", 1.0, -2.0, 0.5, 4.0)
    found = classify(Tensor("Y", "FP16", (2, 2), data), 1, batched=True)
    assert found.shape == (2, 1)
    assert tensors.unpack(found.data, 2) == [b"1.000000:0", b"4.000000:1"]


@pytest.mark.parametrize("datatype", ["BYTES", "BF16"])
def test_what_numpy_has_no_numbers_of_is_refused(datatype):
    """Of BF16 it would take negative values for the highest."""
    with pytest.raises(Refusal, match="not classified"):
        classify(Tensor("Y", datatype, (1, 2), b"\x80\xbf\x80\x3f"), 1, batched=True)
