"""/metrics of a server, read from the counters on request. Times are in seconds, Prometheus' base unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gemlet.serve.dispatch.statistics import BOUNDS_MS
from gemlet.serve.server.frontend import triton_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.server.frontend.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()
MODEL = ("model", "version")


def render(service: Service) -> bytes:
    """The text."""
    registry = CollectorRegistry()
    registry.register(_Metrics(service))
    engine = service.engine
    return generate_latest(registry) + triton_metrics.render(engine.models.values(), engine.waiting)


class _Metrics(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        models = self._service.engine.models.values()
        yield from _requests(models)
        yield _histogram(models)
        yield from _batches(models)
        waiting = GaugeMetricFamily("gemlet_serve_queue", "Requests that wait", labels=MODEL)
        memory = GaugeMetricFamily("gemlet_serve_model_memory_bytes", "Device memory of the model", labels=MODEL)
        ready = GaugeMetricFamily("gemlet_serve_model_ready", "1 while a gpu-let serves it", labels=MODEL)
        for served in models:
            spec = served.spec
            name = _of(served)
            waiting.add_metric(name, self._service.engine.waiting(spec.label))
            memory.add_metric(name, served.memory)
            ready.add_metric(name, float(self._service.engine.serves(spec.label)))
        yield from (waiting, memory, ready)
        flight = GaugeMetricFamily("gemlet_serve_in_flight", "Requests without an answer yet")
        flight.add_metric([], self._service.engine.in_flight)
        yield flight
        restarts = CounterMetricFamily("gemlet_serve_executor_restarts", "Executors started again", labels=["device"])
        for device, count in self._service.restarts().items():
            restarts.add_metric([str(device)], count)
        yield restarts
        yield from self._plan()

    def _plan(self) -> Iterator[Metric]:
        labels = ["gpu", "let", "model"]
        shares = GaugeMetricFamily("gemlet_serve_let_sm", "Share of the SMs, by gpu-let and model on it", labels=labels)
        rates = GaugeMetricFamily("gemlet_serve_planned_rate", "Requests per second planned there", labels=labels)
        for gpu in self._service.plan().gpus:
            for number, gpu_let in enumerate(gpu.gpu_lets):
                for task in gpu_let.tasks:
                    where = [str(gpu.index), str(number), task.model]
                    shares.add_metric(where, gpu_let.sm)
                    rates.add_metric(where, task.rate)
        yield from (shares, rates)


def _of(served: ServedModel) -> list[str]:
    return [served.spec.name, str(served.spec.version)]


def _requests(models: Iterable[ServedModel]) -> Iterator[Metric]:
    requests = CounterMetricFamily("gemlet_serve_requests", "Requests that were answered or refused, by outcome",
                                   labels=[*MODEL, "outcome"])  # fmt: skip
    late = CounterMetricFamily("gemlet_serve_late", "Answers after the deadline", labels=MODEL)
    retried = CounterMetricFamily("gemlet_serve_retried", "Requests run again on another gpu-let", labels=MODEL)
    rows = CounterMetricFamily("gemlet_serve_rows", "Rows inferred", labels=MODEL)
    for served in models:
        counted, name = served.statistics, _of(served)
        requests.add_metric([*name, "answered"], counted.success.count)
        for reason, count in sorted(counted.refused.items()):
            requests.add_metric([*name, reason], count)
        late.add_metric(name, counted.late)
        retried.add_metric(name, counted.retried)
        rows.add_metric(name, counted.rows)
    yield from (requests, late, retried, rows)


def _histogram(models: Iterable[ServedModel]) -> Metric:
    latency = HistogramMetricFamily("gemlet_serve_latency_seconds", "From arrival to answer", labels=MODEL)
    for served in models:
        counted = served.statistics
        total, buckets = 0, []
        for bound, count in zip((*BOUNDS_MS, None), counted.buckets, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else f"{bound / 1000:g}", total))
        latency.add_metric(_of(served), buckets, counted.success.ms / 1000)
    return latency


def _batches(models: Iterable[ServedModel]) -> Iterator[Metric]:
    count = CounterMetricFamily("gemlet_serve_batches", "Batches, by rows", labels=[*MODEL, "rows"])
    seconds = CounterMetricFamily("gemlet_serve_batch_seconds", "Time of batches, by rows", labels=[*MODEL, "rows"])
    for served in models:
        for size, span in sorted(served.statistics.batches.items()):
            count.add_metric([*_of(served), str(size)], span.count)
            seconds.add_metric([*_of(served), str(size)], span.ms / 1000)
    yield from (count, seconds)
