"""The messages have the numbers that Triton's clients use."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from gemlet.inference_protocol import inference_pb2, model_config_pb2
from gemlet.serve.server.frontend import grpc_server


def described(messages):
    """Message -> field -> (number, type, repeated), nested ones too."""
    found = {}
    for message in messages:
        found[message.full_name.rpartition("inference.")[2].rpartition("model_config.")[2]] = {
            field.name: (field.number, field.type, field.is_repeated) for field in message.fields
        }
        found |= described(message.nested_types)
    return found


def test_every_field_has_the_clients_number_and_type():
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is a tool of development")
    pairs = (
        (inference_pb2, client.service_pb2),
        (model_config_pb2, client.model_config_pb2),
    )
    for ours, theirs in pairs:
        known = described(theirs.DESCRIPTOR.message_types_by_name.values())
        for message, fields in described(ours.DESCRIPTOR.message_types_by_name.values()).items():
            for name, field in fields.items():
                assert known[message][name] == field, f"{message}.{name}"


def test_every_procedure_is_one_of_the_clients():
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is a tool of development")
    service = client.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == grpc_server.SERVICE
    asked = set(service.methods_by_name) - {"TraceSetting", "LogSettings"}  # gRPC says UNIMPLEMENTED to these
    prefix = f"/{service.full_name}/"

    async def paths() -> set[str]:
        return {path.decode() for path in grpc_server.GrpcServer(Mock()).procedures}

    assert {path.removeprefix(prefix) for path in asyncio.run(paths()) if path.startswith(prefix)} == asked
