"""Counters of a served model: plain numbers, raised for each request, read by statistics and /metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

# Upper ends of the latency histogram, in milliseconds.
BOUNDS_MS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)


@dataclass(slots=True)
class Span:
    """How often something took how long, in milliseconds."""

    count: int = 0
    ms: float = 0.0

    def add(self, ms: float, count: int = 1) -> None:
        self.count += count
        self.ms += ms


@dataclass(slots=True)
class Statistics:
    """One model since the server started.

    queue: from arrival to the start of its batch; compute: of the batch, once for each of its requests; both of
    answered requests only. refused: by reason. buckets: answered requests by latency, the last bucket is open.
    """

    arrived: int = 0
    success: Span = field(default_factory=Span)
    failure: Span = field(default_factory=Span)
    queue: Span = field(default_factory=Span)
    compute: Span = field(default_factory=Span)
    rows: int = 0
    late: int = 0
    retried: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    batches: dict[int, Span] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    last_unix_ms: int = 0

    @property
    def copies(self) -> Span:
        """Of inputs and outputs: in the compute time already, but readers divide by how often there were some."""
        return Span(self.compute.count)

    def ran(self, rows: int, ms: float) -> None:
        """A batch was executed."""
        span = self.batches.get(rows)
        if span is None:
            span = self.batches[rows] = Span()
        span.add(ms)
        self.last_unix_ms = int(1000 * time.time())

    def answered(self, rows: int, queued_ms: float, compute_ms: float, latency_ms: float, slo_ms: float) -> None:
        self.rows += rows
        self.success.count += 1
        self.success.ms += latency_ms
        self.queue.count += 1
        self.queue.ms += queued_ms
        self.compute.count += 1
        self.compute.ms += compute_ms
        self.late += latency_ms > slo_ms
        self.buckets[bisect_left(BOUNDS_MS, latency_ms)] += 1

    def refuse(self, reason: str, latency_ms: float) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self.failure.add(latency_ms)
