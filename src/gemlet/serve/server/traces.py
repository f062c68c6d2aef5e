"""OpenTelemetry's spans of requests: one for each, and one for each stage of it, under the client's own span.

Spans are made from what the request log knows once a request has ended, in its thread: the event loop does nothing
for them. Where they go is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER).
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from gemlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider

    from gemlet.serve.dispatch.request_log import Line

logger = logging.getLogger(__name__)
END_S = 5.0  # for the collector to take what is left when the server ends
CREDENTIALS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{kind}CREDENTIAL_PROVIDER" for kind in ("", "TRACES_"))
NAME = "gemlet-serve"  # of the service, unless OTEL_SERVICE_NAME says otherwise


class Stage(NamedTuple):
    """Milliseconds since the request came."""

    name: str
    begin: float
    end: float


def stages(line: Line) -> list[Stage]:
    """Of a request that was answered, one after the other; `compute` is in the middle of `execute`."""
    if line.outcome != "answered":
        return []
    queued = line.received_ms + line.queued_ms
    started = queued - line.queued_ms
    back = queued + line.way_ms + line.computed_ms
    computing = queued + line.way_ms / 2
    return [
        Stage("receive", 0.0, line.received_ms),
        Stage("queue", started, queued),
        Stage("execute", queued, back),
        Stage("compute", computing, computing + line.computed_ms),
        Stage("answer", back, line.total_ms),
    ]


def exporter() -> tuple[Callable[[list[Line]], None], Callable[[], None]]:
    """What exports lines by OTLP, and what ends that. Raises UsageError where the libraries are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        from gemlet.serve.server.trace_session import session  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"--traces needs {error.name}", hint="pip install 'gemlet[otel]'") from None
    resource = Resource({SERVICE_NAME: NAME}).merge(Resource.create())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    # A credential provider of OpenTelemetry's variables brings a session of its own.
    brought = any(os.environ.get(name) for name in CREDENTIALS)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(session=None if brought else session())))
    # What the library says, a collector's words in it, goes where the server's own lines go, as printable text.
    logging.getLogger("opentelemetry").parent = logging.getLogger("gemlet")

    def end() -> None:
        # A thread that nobody waits for: the library has an answer that does not come for 10 s, and asks again.
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(END_S)
        if ending.is_alive():
            logger.warning("the last spans are not exported: their collector does not take them within %g s", END_S)

    return to_spans(provider), end


def to_spans(provider: TracerProvider) -> Callable[[list[Line]], None]:
    """What makes spans of lines."""
    from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context  # noqa: PLC0415  an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    tracer, propagator = provider.get_tracer("gemlet.serve"), TraceContextTextMapPropagator()

    def make(line: Line) -> None:
        parent = propagator.extract({"traceparent": line.trace}) if line.trace else None

        def at(ms: float) -> int:
            return round(1e9 * line.time) + round(1e6 * ms)

        about: dict[str, str | int] = {
            "gemlet.model": line.model, "gemlet.version": line.version, "gemlet.outcome": line.outcome,
            "gemlet.id": line.id, "gemlet.rows": line.rows, "gemlet.batch": line.batch, "gemlet.gpu_let": line.gpu_let,
        }  # fmt: skip
        span = tracer.start_span(
            f"infer {line.model}", parent, SpanKind.SERVER, {key: value for key, value in about.items() if value},
            start_time=at(0),
        )  # fmt: skip
        if line.outcome not in {"answered", "cancelled"}:
            span.set_status(StatusCode.ERROR, line.message)
        inside = set_span_in_context(span)
        outer = inside
        for stage in stages(line):
            child = tracer.start_span(
                stage.name, outer if stage.name == "compute" else inside, start_time=at(stage.begin)
            )
            child.end(at(stage.end))
            outer = set_span_in_context(child)
        span.end(at(line.total_ms))

    def export(lines: list[Line]) -> None:
        for line in lines:
            make(line)

    return export
