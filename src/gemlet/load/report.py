"""Numbers of a run: pure, from recordings. Milliseconds and requests/s; latencies are of answered requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gemlet.load.intervals import Interval, cut, nearest_rank
from gemlet.load.recording import ANSWERED, Part, Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.load.model_metadata import ServerTimes

SCHEMA = 1
LATE_MS = 1.0  # a request that goes out later than this after it was due is counted as late
BUSY = 0.9  # of a core: a generator that needs more is itself what is measured
TOLERATED = 0.01  # part of the requests that may go out late before the report says so
RANKS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model at one rate.

    offered: requests/s that were due. answered, in_time: requests; in time of all is ``attainment``, None without an
    SLO. percentiles: by RANKS. refused: requests by reason. sent_late: went out more than LATE_MS after they were due;
    send_ms: mean delay until a request was written, most_late_ms: the largest; queue_ms, input_ms, infer_ms, output_ms:
    the server's own means, None where it tells none. intervals: the whole run, warm-up too, if anybody asked for them.
    """

    model: str
    slo_ms: float | None
    rows: int
    seconds: float
    requests: int
    answered: int
    in_time: int
    percentiles: dict[int, float]
    mean_ms: float | None
    most_ms: float | None
    refused: dict[str, int] = field(default_factory=dict)
    sent_late: int = 0
    send_ms: float = 0.0
    most_late_ms: float = 0.0
    queue_ms: float | None = None
    input_ms: float | None = None
    infer_ms: float | None = None
    output_ms: float | None = None
    intervals: tuple[Interval, ...] = ()

    @property
    def offered(self) -> float:
        return self.requests / self.seconds

    @property
    def throughput(self) -> float:
        """Answers/s."""
        return self.answered / self.seconds

    @property
    def goodput(self) -> float:
        """Answers within the SLO, per second."""
        return self.in_time / self.seconds

    @property
    def attainment(self) -> float | None:
        if self.slo_ms is None:
            return None
        return self.in_time / self.requests if self.requests else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. busy: the busiest generator process, in parts of a core; waited: requests without a free connection.

    began: the first second, as Unix time; 0 where nobody noted it. stopped: it was ended before its time.
    """

    address: str
    seconds: float
    processes: int
    busy: float
    waited: int
    models: tuple[ModelReport, ...]
    began: float = 0.0
    stopped: bool = False

    @property
    def bottleneck(self) -> str | None:
        """Why many requests went out late, so that the generator may be what these numbers show; None if few did."""
        requests = sum(model.requests for model in self.models)
        late = sum(model.sent_late for model in self.models)
        if not requests or late <= TOLERATED * requests:
            return None
        share = f"{late / requests:.1%} of the requests went out more than {LATE_MS:g} ms late"
        if self.waited > TOLERATED * requests:
            return (
                f"{share}: {self.waited} found all connections busy, so the server is slower than this load,"
                " or --connections is too low"
            )
        if self.busy > BUSY:
            return f"{share}: the generator used {self.busy:.0%} of a core; --processes spreads it"
        return f"{share}: the generator did not get its core in time; something else runs on this machine"

    @property
    def worst_attainment(self) -> float | None:
        known = [model.attainment for model in self.models if model.attainment is not None]
        return min(known) if known else None


def of_model(
    name: str,
    recording: Recording,
    seconds: float,
    *,
    slo_ms: float | None,
    rows: int = 1,
    warmup_s: float = 0.0,
    before: ServerTimes | None = None,
    after: ServerTimes | None = None,
    every_s: float | None = None,
) -> ModelReport:
    """Requests that were due in the first ``warmup_s`` seconds do not count."""
    due, sent, done = (np.array(column) for column in (recording.due, recording.sent, recording.done))
    ends = np.array(recording.ends)
    counted = due >= warmup_s
    due, sent, done, ends = due[counted], sent[counted], done[counted], ends[counted]
    answered = ends == ANSWERED
    latency = np.sort(1000 * (done[answered] - due[answered]))
    delay = 1000 * (sent - due)[~np.isnan(sent)]
    unsent = int(np.isnan(sent).sum())
    reasons = Counter(recording.reasons[end - 1] for end in ends[~answered].tolist())
    server: dict[str, float | None] = {}
    if before is not None and after is not None:
        spans = (("queue_ms", "queue"), ("input_ms", "compute_input"), ("infer_ms", "compute_infer"))
        server = {key: after.mean_ms(before, span) for key, span in (*spans, ("output_ms", "compute_output"))}
    return ModelReport(
        model=name,
        slo_ms=slo_ms,
        rows=rows,
        seconds=seconds - warmup_s,
        requests=len(due),
        answered=len(latency),
        in_time=len(latency) if slo_ms is None else int((latency <= slo_ms).sum()),
        percentiles={rank: nearest_rank(latency, rank) for rank in RANKS} if len(latency) else {},
        mean_ms=float(latency.mean()) if len(latency) else None,
        most_ms=float(latency[-1]) if len(latency) else None,
        refused=dict(reasons.most_common()),
        sent_late=int((delay > LATE_MS).sum()) + unsent,
        send_ms=float(delay.mean()) if len(delay) else 0.0,
        most_late_ms=float(delay.max()) if len(delay) else 0.0,
        intervals=cut(recording, every_s, seconds, slo_ms=slo_ms) if every_s is not None else (),
        **server,
    )


def document(reports: Sequence[Report]) -> dict[str, Any]:
    """What -o json prints."""
    return {"schema": SCHEMA, "runs": [_run(report) for report in reports]}


def busiest(parts: Sequence[Part]) -> float:
    return max(part.busy for part in parts)


def _run(report: Report) -> dict[str, Any]:
    return {
        "address": report.address,
        "seconds": report.seconds,
        "began_unix_s": report.began,
        "stopped": report.stopped,
        "processes": report.processes,
        "generator_busy": report.busy,
        "waited_for_a_connection": report.waited,
        "bottleneck": report.bottleneck,
        "models": {
            model.model: {
                "slo_ms": model.slo_ms,
                "rows": model.rows,
                "requests": model.requests,
                "offered": model.offered,
                "answered": model.answered,
                "throughput": model.throughput,
                "in_time": model.in_time,
                "goodput": model.goodput,
                "attainment": model.attainment,
                **{f"p{rank}_ms": model.percentiles.get(rank) for rank in RANKS},
                "mean_ms": model.mean_ms,
                "max_ms": model.most_ms,
                "refused": model.refused,
                "sent_late": model.sent_late,
                "max_late_ms": model.most_late_ms,
                "server_queue_ms": model.queue_ms,
                "server_compute_input_ms": model.input_ms,
                "server_compute_infer_ms": model.infer_ms,
                "server_compute_output_ms": model.output_ms,
                "intervals": [asdict(interval) for interval in model.intervals],
            }
            for model in report.models
        },
    }
