"""One run from its job to its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.load import model_metadata, processes, report

if TYPE_CHECKING:
    from gemlet.load.job import Job
    from gemlet.load.report import Report

SHORTEST_S = 0.001  # so that a run that was stopped at once has rates


def measure(job: Job, *, count: int | None = None, warmup_s: float = 0.0, every_s: float | None = None) -> Report:
    """Runs the job in ``count`` processes, by default as many as its rate needs. Raises LoadError.

    every_s: also results for each part of the run that long. Ctrl-C ends the run, and the report covers the results so
    far; before the run began, or a second time, it raises KeyboardInterrupt.
    """
    count = count or processes.fitting(job)
    before = [model_metadata.times(job.address, stream.model) for stream in job.streams]
    ran = processes.run(job, count)
    seconds = max(ran.seconds, warmup_s + SHORTEST_S)
    after = [model_metadata.times(job.address, stream.model) for stream in job.streams]
    models = tuple(
        report.of_model(
            stream.model,
            recording,
            seconds,
            slo_ms=stream.slo_ms,
            rows=stream.rows,
            warmup_s=warmup_s,
            before=first,
            after=last,
            every_s=every_s,
        )
        for stream, recording, first, last in zip(
            job.streams, processes.together(ran.parts), before, after, strict=True
        )
    )
    return report.Report(
        address=str(job.address),
        seconds=seconds,
        processes=count,
        busy=report.busiest(ran.parts),
        waited=sum(part.waited for part in ran.parts),
        models=models,
        began=ran.began,
        stopped=ran.stopped,
    )
