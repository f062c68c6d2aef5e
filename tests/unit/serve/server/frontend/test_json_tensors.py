"""Tensors as lists in JSON, whatever their size."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.dispatch.call import Tensor
from gemlet.serve.server.frontend import json_tensors


@pytest.mark.parametrize("size", [0, 1, 6, 7, 12, 13])
@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64", "UINT8", "BOOL"])
def test_a_tensor_is_one_list_however_many_pieces_it_is_made_of(monkeypatch, datatype, size):
    monkeypatch.setattr(json_tensors, "PIECE", 6)
    array = np.arange(size).astype(tensors.DTYPES[datatype])
    if datatype == "FP32" and size > 6:
        array[6] = np.inf
    text = json_tensors.text(Tensor("Y", datatype, (1, size), array.tobytes()))
    assert b" " not in text
    assert json.loads(text) == array.tolist()


def test_no_more_than_a_piece_of_a_tensor_is_objects_at_once(monkeypatch):
    monkeypatch.setattr(json_tensors, "PIECE", 6)
    sizes = []
    encode = json_tensors._encode
    monkeypatch.setattr(json_tensors, "_encode", lambda listed: sizes.append(len(listed)) or encode(listed))
    json_tensors.text(Tensor("Y", "FP32", (20,), bytes(80)))
    assert sizes == [6, 6, 6, 2]
