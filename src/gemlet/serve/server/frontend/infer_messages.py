"""An inference request and its answer as messages of the gRPC protocol."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gemlet.inference_protocol import inference_pb2, tensors
from gemlet.serve.dispatch.call import Refusal, Tensor
from gemlet.serve.server.frontend.infer_json import Form, Wanted, classify, into_region, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.regions import Regions

# Which field of InferTensorContents holds a datatype; FP16 and BF16 go as raw contents only.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def parse(request: inference_pb2.ModelInferRequest, regions: Regions) -> tuple[list[Tensor], Form, dict[str, Any]]:
    """Inputs, the form of the answer, and the parameters. Raises Refusal."""
    raw = iter(request.raw_input_contents)
    regions.check_sizes(plain(each.parameters) for each in request.inputs if each.parameters)
    given = [Tensor(each.name, each.datatype, tuple(each.shape), _data(each, raw, regions)) for each in request.inputs]
    if next(raw, None) is not None:
        raise Refusal("invalid", "raw_input_contents has more entries than there are inputs for them")
    default = Wanted(binary=True)
    outputs = {each.name: wanted(plain(each.parameters), default) for each in request.outputs} or None
    form = Form(request.model_name, request.model_version, request.id, default, outputs)
    return given, form, plain(request.parameters)


def render(form: Form, spec: ModelSpec, outputs: list[Tensor], regions: Regions) -> inference_pb2.ModelInferResponse:
    """The answer. Raises Refusal."""
    answer = inference_pb2.ModelInferResponse(model_name=spec.name, model_version=str(spec.version), id=form.id)
    for tensor in outputs:
        how = form.default if form.outputs is None else form.outputs[tensor.name]
        if how.classes:
            tensor = classify(tensor, how.classes, batched=bool(spec.max_batch))  # noqa: PLW2901
        one = answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if how.region:
            into_region(tensor, how, regions)
            one.parameters["shared_memory_region"].string_param = how.region
            one.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
            if how.offset:
                one.parameters["shared_memory_offset"].int64_param = how.offset
            answer.raw_output_contents.append(b"")
        else:
            answer.raw_output_contents.append(bytes(tensor.data))
    return answer


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain values."""
    return {
        name: getattr(value, chosen)
        for name, value in parameters.items()
        if (chosen := value.WhichOneof("parameter_choice")) is not None
    }


def _data(each: Any, raw: Iterator[bytes], regions: Regions) -> tensors.Buffer:
    if any(size < 0 for size in each.shape):
        raise Refusal("invalid", f"input {each.name!r}: {list(each.shape)} is not a valid shape")
    parameters = plain(each.parameters)
    region = parameters.get("shared_memory_region")
    if region is not None:
        offset, nbytes = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size", 0)
        if not (isinstance(region, str) and isinstance(offset, int) and isinstance(nbytes, int)):
            raise Refusal("invalid", f"input {each.name!r}: its shared memory parameters are not valid")
        return regions.read(region, offset, nbytes)
    if not each.HasField("contents"):
        data = next(raw, None)
        if data is None:
            raise Refusal("invalid", f"input {each.name!r} has no data")
        return data
    field = CONTENTS.get(each.datatype)
    if field is None:
        raise Refusal("invalid", f"input {each.name!r}: {each.datatype!r} goes as raw contents only, or is none")
    elements = getattr(each.contents, field)
    if len(elements) != prod(each.shape):
        message = f"input {each.name!r} has {len(elements)} elements; shape {list(each.shape)} has {prod(each.shape)}"
        raise Refusal("invalid", message)
    if each.datatype == "BYTES":
        return tensors.pack(elements)
    try:
        return np.array(list(elements), dtype=tensors.ELEMENTS[each.datatype][1]).tobytes()  # a list: numpy checks it
    except (ValueError, OverflowError) as error:
        raise Refusal("invalid", f"input {each.name!r}: {error}") from None
