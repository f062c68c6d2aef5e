"""Whole requests as they go over the wire, made once and sent often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.load.inputs import Input
    from gemlet.load.job import Address


def http(address: Address, model: str, inputs: Sequence[Input], *, binary: bool) -> bytes:
    """An HTTP request: tensors as binary after the JSON, or, for servers without that extension, in it."""
    entries: list[dict[str, Any]] = []
    for tensor in inputs:
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
        if binary:
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
        else:
            entry["data"] = tensor.elements()
        entries.append(entry)
    document: dict[str, Any] = {"inputs": entries}
    if binary:
        document["parameters"] = {"binary_data_output": True}
    head = msgspec.json.encode(document)
    body = head + b"".join(tensor.data for tensor in inputs) if binary else head
    lines = [
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        "User-Agent: gemlet-load",
        f"Content-Length: {len(body)}",
        "Content-Type: application/octet-stream" if binary else "Content-Type: application/json",
    ]
    if binary:
        lines.append(f"Inference-Header-Content-Length: {len(head)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def grpc(model: str, inputs: Sequence[Input]) -> bytes:
    """A ModelInferRequest."""
    from gemlet.inference_protocol import inference_pb2  # noqa: PLC0415  needs protobuf, which HTTP does not

    request = inference_pb2.ModelInferRequest(model_name=model)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.data)
    return bytes(request.SerializeToString())
