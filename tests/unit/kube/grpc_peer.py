"""The kubelet's end of gRPC in tests: by grpcio, which is not what the agent has."""

from __future__ import annotations

import grpc

from gemlet.kube.services import SERVICES


def serve(server, service, servant):
    """Serves ``service`` by the methods of the same names of ``servant``: async ``(request, context)``."""
    handlers = {}
    for name, (request, response, stream) in SERVICES[service].items():
        make = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        handlers[name] = make(
            getattr(servant, name),
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def method(channel, service, name):
    """A method of ``service`` to be called through ``channel``."""
    request, response, stream = SERVICES[service][name]
    make = channel.unary_stream if stream else channel.unary_unary
    return make(
        f"/{service}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
