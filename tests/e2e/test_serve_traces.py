"""`gemlet serve --traces`: what an OpenTelemetry collector gets of requests by both protocols."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.serve_process import serving, write_model

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="the extra `otel`")
CONFIG = """
platform: noop
max_batch: 8
inputs: [{name: X, datatype: FP32, shape: [4]}]
outputs: [{name: Y, datatype: FP32, shape: [4]}]
"""
PARENTS = {"http": "00-" + "a" * 32 + "-" + "1" * 16 + "-01", "grpc": "00-" + "b" * 32 + "-" + "2" * 16 + "-01"}


@pytest.fixture
def collector():
    """Its address, and the spans that came."""
    found = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = service.ExportTraceServiceRequest.FromString(body)
            found.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", found
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_the_stages_of_requests(tmp_path, collector, monkeypatch):
    address, spans = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    write_model(tmp_path / "models", "echo", CONFIG)
    with serving(tmp_path / "models", tmp_path / "log", "--traces") as server:
        for name, kit in (("http", tritonclient.http), ("grpc", tritonclient.grpc)):
            given = kit.InferInput("X", [1, 4], "FP32")
            given.set_data_from_numpy(np.zeros((1, 4), np.float32))
            with kit.InferenceServerClient(getattr(server, name)) as client:
                client.infer("echo", [given], headers={"traceparent": PARENTS[name]})
    # the server has ended, and sent what it had
    requests = {span.trace_id.hex(): span for span in spans if span.name == "infer echo"}
    assert {trace: span.parent_span_id.hex() for trace, span in requests.items()} == {
        "a" * 32: "1" * 16,
        "b" * 32: "2" * 16,
    }
    stages = {span.name for span in spans if span.parent_span_id == requests["a" * 32].span_id}
    assert stages == {"receive", "queue", "execute", "answer"}
