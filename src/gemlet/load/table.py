"""Reports as people and programs read them: a table, and perf_analyzer's columns as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from gemlet.load.report import RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.load.report import ModelReport, Report

# perf_analyzer's, with --request-rate-range; microseconds. Its readers find the columns by these names.
COLUMNS = (
    "Request Rate", "Inferences/Second", "Client Send", "Network+Server Send/Recv", "Server Queue",
    "Server Compute Input", "Server Compute Infer", "Server Compute Output", "Client Recv",
    "p50 latency", "p90 latency", "p95 latency", "p99 latency",
)  # fmt: skip
HEADER = ("model", "offered/s", "answered/s", "goodput/s", "in time", "p50", "p90", "p95", "p99", "mean", "max", "SLO")


def as_csv(reports: Sequence[Report]) -> str:
    """perf_analyzer's columns; with several models the model's name is before them.

    Client Send is the time until a request was written, from when it was due; replies are not timed apart from the
    network, so Client Recv is 0. The columns sum to the mean latency. What the server does not tell is 0.
    """
    several = any(len(report.models) > 1 for report in reports)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((("Model",) if several else ()) + COLUMNS)
    for report in reports:
        for model in report.models:
            writer.writerow(([model.model] if several else []) + _row(model))
    return text.getvalue()


def _row(model: ModelReport) -> list[str]:
    server = [model.queue_ms or 0.0, model.input_ms or 0.0, model.infer_ms or 0.0, model.output_ms or 0.0]
    network = max(0.0, (model.mean_ms or 0.0) - sum(server) - model.send_ms)
    spans = [model.send_ms, network, *server, 0.0, *(model.percentiles.get(rank, 0.0) for rank in RANKS)]
    rates = [f"{model.offered:.6g}", f"{model.throughput * model.rows:.6g}"]
    return rates + [str(round(1000 * span)) for span in spans]


def cells(model: ModelReport) -> tuple[str, ...]:
    """One row under HEADER."""
    percentiles = [model.percentiles.get(rank) for rank in RANKS]
    return (
        model.model,
        f"{model.offered:.1f}",
        f"{model.throughput:.1f}",
        f"{model.goodput:.1f}",
        "-" if model.attainment is None else f"{model.attainment:.2%}",
        *("-" if value is None else f"{value:.2f} ms" for value in (*percentiles, model.mean_ms, model.most_ms)),
        "-" if model.slo_ms is None else f"{model.slo_ms:g} ms",
    )


def notes(report: Report) -> list[str]:
    """What a table cannot say: why requests were refused, and whether the generator kept up."""
    lines = []
    for model in report.models:
        lines += [f"{model.model}: {count} without an answer: {message}" for message, count in model.refused.items()]
    counted = "latencies count from when they were due"
    late = sum(model.sent_late for model in report.models)
    worst = max((model.most_late_ms for model in report.models), default=0.0)
    if late and report.bottleneck is None:
        requests = "request" if late == 1 else "requests"
        lines.append(f"{late} {requests} went out late, by {worst:.1f} ms at most; {counted}")
    if report.bottleneck is not None:
        lines.append(f"the load was not as planned: {report.bottleneck}")
    return lines
