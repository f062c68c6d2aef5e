"""One run from its job to its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.load import inquiry, processes, report

if TYPE_CHECKING:
    from gemlet.serve.load.job import Job
    from gemlet.serve.load.report import Report


def measure(job: Job, *, count: int | None = None, warmup_s: float = 0.0) -> Report:
    """Runs the job in ``count`` processes, by default as many as its rate needs. Raises LoadError."""
    count = count or processes.fitting(job)
    before = [inquiry.times(job.address, stream.model) for stream in job.streams]
    parts = processes.run(job, count)
    after = [inquiry.times(job.address, stream.model) for stream in job.streams]
    models = tuple(
        report.of_model(
            stream.model,
            recording,
            job.seconds,
            slo_ms=stream.slo_ms,
            rows=stream.rows,
            warmup_s=warmup_s,
            before=first,
            after=last,
        )
        for stream, recording, first, last in zip(job.streams, processes.together(parts), before, after, strict=True)
    )
    return report.Report(
        address=str(job.address),
        seconds=job.seconds,
        processes=count,
        busy=report.busiest(parts),
        waited=sum(part.waited for part in parts),
        models=models,
    )
