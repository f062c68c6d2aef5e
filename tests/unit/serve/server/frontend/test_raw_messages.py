"""What is read without protobuf is what protobuf reads, or is left to it."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from gemlet.inference_protocol import inference_pb2
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import infer_messages, raw_messages
from gemlet.serve.server.frontend.regions import Regions
from gemlet.serve.server.frontend.request_checks import STRUCTURE_BYTES

texts = st.text(max_size=6)


@st.composite
def requests(draw):
    message = inference_pb2.ModelInferRequest(
        model_name=draw(texts), model_version=draw(texts), id=draw(texts | st.just("i" * 200))
    )
    for name in draw(st.lists(texts, max_size=3)):
        shape = draw(st.lists(st.integers(-1, 300), max_size=3))
        each = message.inputs.add(name=name, datatype=draw(st.sampled_from(["FP32", "BYTES", "?"])), shape=shape)
        kind = draw(st.sampled_from(["raw", "raw", "raw", "contents", "shared"]))
        if kind == "contents":
            each.contents.fp32_contents.append(1.0)
        elif kind == "shared":
            each.parameters["shared_memory_region"].string_param = "region"
    for name in draw(st.lists(texts, max_size=2)):
        message.outputs.add(name=name).parameters["classification"].int64_param = draw(st.integers(-1, 2))
    for name in draw(st.lists(texts, max_size=2)):
        message.parameters[name].int64_param = draw(st.integers(-5, 5))
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=300), max_size=3)))
    return message.SerializeToString()


def by_protobuf(data):
    """What infer_messages.py reads; None if it refuses."""
    try:
        message = inference_pb2.ModelInferRequest.FromString(data)
        return infer_messages.parse(message, message.raw_input_contents, Regions().of(lambda: None))
    except (DecodeError, Refusal):
        return None


def same(data):
    ours = raw_messages.parse(data)
    if ours is None:
        return False
    theirs = by_protobuf(data)
    assert theirs is not None
    given, form, parameters = ours
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in given] == [
        (t.name, t.datatype, t.shape, bytes(t.data)) for t in theirs[0]
    ]
    assert (form, parameters) == theirs[1:]
    return True


@given(requests())
def test_what_is_read_without_protobuf_is_what_protobuf_reads(data):
    same(data)


@given(requests(), st.data())
def test_a_message_that_was_damaged_is_not_read_otherwise(data, more):
    at = more.draw(st.integers(0, len(data)))
    same(data[:at] + more.draw(st.binary(max_size=4)) + data[more.draw(st.integers(0, len(data))) :])


@given(st.binary(max_size=60))
@example(b"\x1a\x01a\x1a\x01b:\x00")
@example(b"\x08\x03:\x01a:\x00")
@example(b":\x80\x80\x80\x80\x80\x00")
def test_any_bytes_are_read_as_protobuf_does_or_left_to_it(data):
    same(data)


def usual(**more):
    given = {"model_name": "simple", "id": "7", "raw_input_contents": [bytes(4), bytes(200)]} | more
    message = inference_pb2.ModelInferRequest(**given)
    for name, size in (("X", 1), ("Y", 50)):
        message.inputs.add(name=name, datatype="FP32", shape=[1, size])
    message.outputs.add(name="Z")
    return message.SerializeToString()


@pytest.mark.parametrize("more", [{}, {"id": ""}, {"id": "x" * 1000}, {"model_version": "2"}])
def test_usual_requests_are_read_without_protobuf(more):
    assert same(usual(**more))


def test_the_same_structure_is_read_by_protobuf_once():
    raw_messages._structure.cache_clear()
    for number in range(5):
        assert same(usual(id=str(number), raw_input_contents=[bytes([number] * 4), bytes(200)]))
    assert raw_messages._structure.cache_info().misses == 1


@pytest.mark.parametrize(
    "data",
    [
        usual(raw_input_contents=[]),
        usual(raw_input_contents=[bytes(4)]),
        usual(model_name="m" * (STRUCTURE_BYTES + 1)),
        usual(raw_input_contents=[b""] * (raw_messages.MOST_FIELDS + 1)),
        usual() + inference_pb2.ModelInferRequest(id="8").SerializeToString(),
        usual() + b"\x48\x00",
        usual()[:-1],
        b"",
    ],
    ids=["no data", "too little", "a long structure", "many", "another order", "an unknown field", "cut", "nothing"],
)
def test_what_is_not_usual_is_left_to_protobuf(data):
    assert raw_messages.parse(data) is None
