"""What the server and its models say of themselves, as JSON documents; what is of all models, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import gemlet
from gemlet.serve.dispatch.statistics import Span
from gemlet.serve.server.repository import triton_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.dispatch.statistics import Statistics
    from gemlet.serve.models.specification import ModelSpec, TensorSpec
    from gemlet.serve.server.frontend.service import IndexEntry, Service

SERVER = "gemlet"
EXTENSIONS = (
    "binary_tensor_data", "classification", "model_repository", "model_configuration", "schedule_policy", "statistics",
    "system_shared_memory", "cuda_shared_memory", "logs",
)  # fmt: skip


def server(service: Service) -> dict[str, Any]:
    return {
        "name": SERVER,
        "version": gemlet.__version__,
        "extensions": EXTENSIONS,
        "parameters": dict(service.runs_on()),
    }


def server_text(service: Service) -> bytes:
    return msgspec.json.encode(server(service))


def health(service: Service) -> bytes:
    models = {entry.name: entry.state for entry in service.index()}
    return msgspec.json.encode({"live": True, "ready": service.ready, "models": models})


def index(service: Service) -> bytes:
    return _index(service.index())


def index_of_ready(service: Service) -> bytes:
    return _index(entry for entry in service.index() if entry.state == "READY")


def _index(entries: Iterable[IndexEntry]) -> bytes:
    return msgspec.json.encode(
        [
            {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
            for entry in entries
        ]
    )


def all_statistics(service: Service) -> bytes:
    return msgspec.json.encode({"model_stats": [statistics(served) for served in service.engine.models.values()]})


def shape(spec: ModelSpec, tensor: TensorSpec) -> list[int]:
    """With the batch dimension, as clients see it."""
    return [-1, *tensor.shape] if spec.max_batch else list(tensor.shape)


def model(spec: ModelSpec, versions: Sequence[ServedModel]) -> dict[str, Any]:
    """``versions``: all of the model that are served."""
    return {
        "name": spec.name,
        "versions": [str(each.spec.version) for each in versions],
        "platform": spec.shown_platform,
        "inputs": [{"name": t.name, "datatype": t.datatype, "shape": shape(spec, t)} for t in spec.inputs],
        "outputs": [{"name": t.name, "datatype": t.datatype, "shape": shape(spec, t)} for t in spec.outputs],
    }


def configuration(spec: ModelSpec, versions: Sequence[ServedModel]) -> dict[str, Any]:
    message = triton_config.message_of(spec, [each.spec.version for each in versions])
    return triton_config.table(message, whole=False)


def statistics(served: ServedModel) -> dict[str, Any]:
    """Triton's statistics extension, durations in nanoseconds, and ours under ``gemlet``."""
    counted = served.statistics
    return {
        "name": served.spec.name,
        "version": str(served.spec.version),
        "last_inference": counted.last_unix_ms,
        "inference_count": counted.rows,
        "execution_count": sum(span.count for span in counted.batches.values()),
        "inference_stats": {
            "success": _span(counted.success),
            "fail": _span(counted.failure),
            "queue": _span(counted.queue),
            "compute_input": _span(counted.copies),
            "compute_infer": _span(counted.compute),
            "compute_output": _span(counted.copies),
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_infer": _span(span),
                "compute_input": _span(Span(span.count)),
                "compute_output": _span(Span(span.count)),
            }
            for size, span in sorted(counted.batches.items())
        ],
        "gemlet": _ours(counted, served),
    }


def _ours(counted: Statistics, served: ServedModel) -> dict[str, Any]:
    return {
        "arrived": counted.arrived,
        "late": counted.late,
        "retried": counted.retried,
        "refused": counted.refused,
        "slo_ms": served.spec.slo_ms,
        "memory": served.memory,
    }


def _span(span: Span) -> dict[str, int]:
    return {"count": span.count, "ns": int(span.ms * 1e6)}
