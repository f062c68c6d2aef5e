"""Batches before the first request: what they are made of, and what that takes."""

from __future__ import annotations

import os
import tracemalloc

import msgspec
import numpy as np
import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.execution import warm_up
from gemlet.serve.models.specification import ModelError, TensorSpec, WarmUp
from tests.unit.serve.stand_in import model


@pytest.mark.parametrize("datatype", sorted(tensors.ELEMENTS))
@pytest.mark.parametrize("fill", ["zero", "random"])
def test_an_input_of_a_warm_up_takes_no_more_memory_than_it_has(tmp_path, datatype, fill):
    """numpy's random numbers have 8 bytes each, unless it is asked for others."""
    spec = model("m", max_batch=8)
    tracemalloc.start()
    try:
        array = warm_up._array(spec, TensorSpec("X", datatype, (250_000,)), fill, 4)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.shape == (4, 250_000)
    assert array.dtype == tensors.DTYPES[datatype]
    assert set(np.unique(array)) <= {0, 1} or datatype.startswith("FP")
    # A half is made of a float.
    assert most < array.nbytes * (3 if datatype == "FP16" else 1) + 1_000_000


def test_a_file_of_a_warm_up_is_a_file_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "MAX_FILE_BYTES", 100)
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "large").write_bytes(bytes(26))
    os.mkfifo(tmp_path / "warmup" / "fifo")
    spec = model("m", max_batch=8, warm_up=())
    spec = msgspec.structs.replace(spec, directory=str(tmp_path))
    for name, message in (("large", "larger than 25 bytes"), ("fifo", "not a regular file")):
        sample = WarmUp("one", 4, 1, ((TensorSpec("X", "FP32", (2,)), name),))
        with pytest.raises(ModelError, match=message):
            warm_up.warm_up(msgspec.structs.replace(spec, warm_up=(sample,)), lambda *_: None)
