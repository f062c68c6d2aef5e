"""Spans of requests: their stages, and whose children they are."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

import pytest

from gemlet.serve.dispatch.request_log import Line
from gemlet.serve.server import traces

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is the extra `otel`")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ANSWERED = Line(
    time=1000.0, model="m", version="1", outcome="answered", rows=2, batch=4, gpu_let="gpu0/let0", trace=PARENT,
    received_ms=1.0, queued_ms=2.0, way_ms=0.5, computed_ms=3.0, answered_ms=0.25, total_ms=6.75,
)  # fmt: skip


def spans(*lines):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.to_spans(provider)(list(lines))
    provider.shutdown()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_and_its_stages_are_spans_below_the_clients():
    found = spans(ANSWERED)
    times = {name: [(each.start_time - 10**12) / 1e6, (each.end_time - 10**12) / 1e6] for name, each in found.items()}
    assert times == {
        "infer m": [0.0, 6.75], "receive": [0.0, 1.0], "queue": [1.0, 3.0], "execute": [3.0, 6.5],
        "compute": [3.25, 6.25], "answer": [6.5, 6.75],
    }  # fmt: skip
    request = found["infer m"]
    assert f"{request.context.trace_id:032x}" == PARENT[3:35]
    assert f"{request.parent.span_id:016x}" == PARENT[36:52]
    assert found["compute"].parent.span_id == found["execute"].context.span_id
    assert all(found[name].parent.span_id == request.context.span_id for name in ("receive", "queue", "answer"))
    assert dict(request.attributes) == {
        "gemlet.model": "m", "gemlet.version": "1", "gemlet.outcome": "answered", "gemlet.rows": 2, "gemlet.batch": 4,
        "gemlet.gpu_let": "gpu0/let0",
    }  # fmt: skip


@pytest.mark.parametrize("given", ["", "nonsense", PARENT[:-1], f"zz{PARENT[2:]}"])
def test_without_a_parent_that_is_one_it_is_the_first_of_its_trace(given):
    refused = Line(time=1000.0, model="m", outcome="deadline", message="too late", total_ms=5.0, trace=given)
    (span,) = spans(refused).values()
    assert span.parent is None
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "too late")


def test_the_end_of_the_server_does_not_wait_for_a_collector_that_is_silent(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(traces, "END_S", 0.01)
        export, end = traces.exporter()
        export([Line(time=1e9, model="m", outcome="answered", total_ms=1.0)])
        end()  # by itself it would wait for ten seconds, and ask again
    assert "spans are not exported" in caplog.text


MIB = 1 << 20


@pytest.mark.parametrize("head", ["200 OK", "400 no"])
def test_of_a_collectors_answer_little_is_read(monkeypatch, caplog, head):
    sent = []

    def collect(listening):
        while True:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                if not connection.recv(4096):
                    return
                connection.sendall(f"HTTP/1.1 {head}\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
                for _ in range(512):
                    connection.sendall(bytes(MIB))
                    sent.append(MIB)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{address[1]}")
        collecting = threading.Thread(target=collect, args=(listening,))
        collecting.start()
        export, end = traces.exporter()
        logging.getLogger("opentelemetry").parent = logging.getLogger()  # where pytest looks
        export([Line(time=1e9, model="m", outcome="answered", total_ms=1.0)])
        end()
        socket.create_connection(address).close()
        collecting.join()
    assert sum(sent) < 64 * MIB  # what sockets keep
    assert ("reason: no" in caplog.text) == (head != "200 OK")
