"""Requests and answers as messages of gRPC."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.inference_protocol import inference_pb2, tensors
from gemlet.serve.dispatch.call import Refusal, Tensor, check
from gemlet.serve.server.frontend import infer_messages
from gemlet.serve.server.frontend.answer_form import Form, Wanted
from gemlet.serve.server.frontend.regions import Regions
from tests.unit.serve.stand_in import model

FIELDS = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "UINT16": ("uint_contents", [0, 65535]),
    "INT64": ("int64_contents", [-(2**63), 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -1]),
    "FP64": ("fp64_contents", [1e300, 0]),
}


def request(**contents):
    message = inference_pb2.ModelInferRequest(model_name="echo", id="7")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 2]).contents.MergeFrom(
        inference_pb2.InferTensorContents(**contents)
    )
    return message


@pytest.mark.parametrize("datatype", sorted(FIELDS))
def test_contents_of_every_datatype_are_what_they_were(datatype):
    field, values = FIELDS[datatype]
    message = request(**{field: values})
    message.inputs[0].datatype = datatype
    ((tensor,), form, _) = infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))
    assert tensors.to_array(tensor.data, datatype, (2,)).tolist() == values
    assert form.id == "7"


def test_bytes_and_raw_contents():
    message = request(bytes_contents=[b"a", b""])
    message.inputs[0].datatype = "BYTES"
    message.inputs.add(name="Y", datatype="FP32", shape=[1])
    message.raw_input_contents.append(b"1234")
    (x, y), _, _ = infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))
    assert tensors.unpack(x.data, 2) == [b"a", b""]
    assert y.data == b"1234"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (request(fp32_contents=[1.0]), "1 elements; shape"),
        (request(int_contents=[1, 2]), "0 elements; shape"),
        (inference_pb2.ModelInferRequest(raw_input_contents=[b""]), "more entries than there are inputs"),
    ],
)
def test_an_invalid_request_has_its_message(message, words):
    with pytest.raises(Refusal, match=words):
        infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))


def test_numbers_that_do_not_fit_are_refused():
    message = request(int_contents=[300, 0])
    message.inputs[0].datatype = "INT8"
    with pytest.raises(Refusal, match="input 'X'"):
        infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))


def test_an_answer_has_its_outputs_in_order():
    _, form, _ = infer_messages.parse(request(fp32_contents=[1, 2]), [], Regions().of(lambda: None))
    spec = model(outputs=(("Y", "FP32", (2,)), ("Z", "BYTES", (1,))))
    outputs = [
        Tensor("Y", "FP32", (1, 2), np.ones(2, np.float32).tobytes()),
        Tensor("Z", "BYTES", (1, 1), tensors.pack([b"z"])),
    ]
    rendered = b"".join(infer_messages.render(form, spec, outputs, {}))
    answer = inference_pb2.ModelInferResponse.FromString(rendered)
    assert [each.name for each in answer.outputs] == ["Y", "Z"]
    assert list(answer.raw_output_contents) == [outputs[0].data, outputs[1].data]
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "echo", "1")


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 16383, 16384, 3_000_000])
def test_an_answer_has_data_of_any_size(nbytes):
    form = Form("echo", "", "", Wanted(binary=True), None)
    outputs = [Tensor(name, "UINT8", (1, nbytes), memoryview(bytes([1]) * nbytes)) for name in ("Y", "Z")]
    rendered = b"".join(infer_messages.render(form, model(version=3), outputs, {}))
    answer = inference_pb2.ModelInferResponse.FromString(rendered)
    assert [bytes(each.data) for each in outputs] == list(answer.raw_output_contents)
    assert [list(each.shape) for each in answer.outputs] == [[1, nbytes]] * 2
    assert (answer.model_version, answer.id) == ("3", "")


@given(st.binary(max_size=200))
def test_any_message_is_read_or_refused(data):
    message = inference_pb2.ModelInferRequest()
    with contextlib.suppress(Exception):  # not a message: gRPC refuses it before it comes here
        message.ParseFromString(request(fp32_contents=[1, 2]).SerializeToString() + data)
    with contextlib.suppress(Refusal):
        inputs, _, _ = infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))
        check(model(), inputs)
