"""Asks the server for its models' inputs, and for its own statistics before and after a run."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from gemlet.decoding import from_json
from gemlet.load.inputs import Declared
from gemlet.load.job import LoadError

if TYPE_CHECKING:
    from gemlet.load.job import Address

TIMEOUT_S = 10.0
MOST_BYTES = 16 * 1024**2  # of what a server says of a model
SPANS = ("success", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Inputs of a model; binary: the server takes tensors as bytes. slo_ms: where it says what it promises."""

    inputs: tuple[Declared, ...]
    binary: bool = True
    slo_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Counts and nanoseconds since the server started, by span of SPANS."""

    counts: dict[str, int] = field(default_factory=dict)
    ns: dict[str, int] = field(default_factory=dict)

    def mean_ms(self, since: ServerTimes, span: str) -> float | None:
        """Of the requests that were answered between two looks; None without any."""
        count = self.counts.get(span, 0) - since.counts.get(span, 0)
        return (self.ns.get(span, 0) - since.ns.get(span, 0)) / count / 1e6 if count > 0 else None


def model(address: Address, name: str) -> ModelInfo:
    """Raises LoadError if there is no such server or model."""
    if address.grpc:
        return _grpc_model(address, name)
    server = _get(address, "/v2")
    extensions = server.get("extensions", [])
    document = _get(address, f"/v2/models/{quote(name, safe='')}")
    try:
        inputs = tuple(
            Declared(entry["name"], entry["datatype"], tuple(int(size) for size in entry["shape"]))
            for entry in document["inputs"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{address}: the metadata of {name!r} does not follow the protocol: {error!r}") from None
    return ModelInfo(inputs, "binary_tensor_data" in extensions, _http_slo(address, name))


def times(address: Address, name: str) -> ServerTimes | None:
    """The server's statistics of a model; None where it has none: they are an extension."""
    try:
        if address.grpc:
            return _grpc_times(address, name)
        entry = _get(address, f"/v2/models/{quote(name, safe='')}/stats")["model_stats"][0]["inference_stats"]
        counts = {span: int(entry[span]["count"]) for span in SPANS if span in entry}
        return ServerTimes(counts, {span: int(entry[span]["ns"]) for span in counts})
    except (LoadError, KeyError, IndexError, TypeError, ValueError):
        return None


def _http_slo(address: Address, name: str) -> float | None:
    """Of the model's configuration, which is an extension; None where the server has none or names no SLO there."""
    try:
        config = _get(address, f"/v2/models/{quote(name, safe='')}/config")
        return _slo(config["parameters"]["slo_ms"]["string_value"])
    except (LoadError, KeyError, TypeError):
        return None


def _grpc_slo(address: Address, name: str) -> float | None:
    try:
        reply: Any = _call(address, "ModelConfig", name)
    except LoadError:
        return None
    parameters = reply.config.parameters
    return _slo(parameters["slo_ms"].string_value) if "slo_ms" in parameters else None


def _slo(text: str) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if 0 < value < float("inf") else None


def _get(address: Address, path: str) -> dict[str, Any]:
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    more: dict[str, Any] = {"context": ssl.create_default_context()} if address.secure else {}
    connection = kind(address.host, address.port, timeout=TIMEOUT_S, **more)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        message = getattr(error, "strerror", None) or error
        raise LoadError(
            f"no server at {address}: {message}", hint="check that it runs; `gemlet serve` starts one"
        ) from None
    finally:
        connection.close()
    if len(body) > MOST_BYTES:
        raise LoadError(f"{address}{path} has more than {MOST_BYTES} bytes")
    try:
        document: Any = from_json(body, Any) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    if reply.status != 200:
        message = document.get("error", "") if isinstance(document, dict) else body[:200].decode(errors="replace")
        hint = f"list its models with `curl -X POST {address}/v2/repository/index`" if reply.status == 404 else None
        raise LoadError(f"{address}{path}: {reply.status} {message}".rstrip(), hint=hint)
    if not isinstance(document, dict):
        raise LoadError(f"{address}{path} does not speak the Open Inference Protocol")
    return document


def _grpc_model(address: Address, name: str) -> ModelInfo:
    reply: Any = _call(address, "ModelMetadata", name)
    inputs = tuple(Declared(entry.name, entry.datatype, tuple(entry.shape)) for entry in reply.inputs)
    return ModelInfo(inputs, slo_ms=_grpc_slo(address, name))


def _grpc_times(address: Address, name: str) -> ServerTimes | None:
    reply: Any = _call(address, "ModelStatistics", name)
    spans = reply.model_stats[0].inference_stats
    return ServerTimes(
        {span: getattr(spans, span).count for span in SPANS}, {span: getattr(spans, span).ns for span in SPANS}
    )


def _call(address: Address, method: str, name: str) -> Any:
    import grpc  # noqa: PLC0415  18 MB that HTTP does not need

    from gemlet.inference_protocol import inference_pb2  # noqa: PLC0415

    where = f"{address.host}:{address.port}"
    secure = address.secure
    channel = grpc.secure_channel(where, grpc.ssl_channel_credentials()) if secure else grpc.insecure_channel(where)
    request = getattr(inference_pb2, f"{method}Request")(name=name)
    reply = getattr(inference_pb2, f"{method}Response")
    with channel:
        call = channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                hint = "check that it runs; gRPC has a port of its own, 8001 by default"
                raise LoadError(f"no server at {address}: {details}", hint=hint) from None
            raise LoadError(f"{address}, model {name!r}: {code.name} {details}") from None
