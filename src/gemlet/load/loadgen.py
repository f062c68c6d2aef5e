"""MLCommons' loadgen, scenario Server, in place of our arrivals: its Poisson schedule, its verdict.

loadgen knows answers only, so a refused request is completed to it after twice the latency bound: it counts as one that
was too late, which it was. Short runs and models of one's own are not MLPerf results, whatever the verdict.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.errors import GemletError
from gemlet.load import report
from gemlet.load.generator import client_of
from gemlet.load.recording import Recording

if TYPE_CHECKING:
    from gemlet.load.generator import Client
    from gemlet.load.job import Job

SUMMARY = "mlperf_log_summary.txt"
SAMPLES = 64  # in loadgen's library; which one a query names means nothing to made-up tensors


@dataclass(frozen=True, slots=True)
class Verdict:
    """loadgen's, and the same run as our report. ``summary``: its own text."""

    valid: bool
    summary: str
    report: report.Report

    @property
    def verdict(self) -> str:
        """loadgen's word, and which of its conditions were not met."""
        if self.valid:
            return "VALID"
        conditions = (line.split(":") for line in self.summary.splitlines() if ":" in line)
        missed = [
            message[0].strip(" *").removesuffix(" satisfied") for message in conditions if message[1].strip() == "NO"
        ]
        more = re.search(r"at least (\d+) more queries", self.summary)
        hint = f"; it wants {more[1]} more queries: a longer --duration" if more else ""
        return f"INVALID, not met: {', '.join(missed) or 'see its summary'}{hint}"


def require() -> Any:
    """loadgen. Raises GemletError where it is not installed."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError:
        raise GemletError("MLCommons' loadgen is not installed", hint="pip install 'gemlet[loadgen]'") from None


def server(job: Job, *, goal: float) -> Verdict:
    """Runs scenario Server: the job's one stream at its rate, ``goal`` of the replies within its SLO."""
    lg = require()
    stream = job.streams[0]
    assert stream.slo_ms is not None
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Server
    settings.mode = lg.TestMode.PerformanceOnly
    settings.server_target_qps = stream.rate.at(0.0)
    settings.server_target_latency_ns = int(stream.slo_ms * 1e6)
    settings.server_target_latency_percentile = goal
    settings.min_duration_ms = int(1000 * job.seconds)
    settings.min_query_count = max(1, int(stream.rate.at(0.0) * job.seconds))
    settings.schedule_rng_seed = settings.qsl_rng_seed = settings.sample_index_rng_seed = job.seed
    with tempfile.TemporaryDirectory() as folder, _Sender(job, lg) as sender:
        logs = lg.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        logs.enable_trace = False
        sut = lg.ConstructSUT(sender.issue, lambda: None)
        qsl = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _samples: None, lambda _samples: None)
        try:
            lg.StartTestWithLogSettings(sut, qsl, settings, logs)
        finally:
            lg.DestroyQSL(qsl)
            lg.DestroySUT(sut)
        summary = (Path(folder) / SUMMARY).read_text()
        whole = sender.report()
    return Verdict("Result is : VALID" in summary, summary, whole)


class _Sender:
    """The job's client in an event loop of its own: loadgen calls from its threads. A context manager."""

    def __init__(self, job: Job, lg: Any) -> None:
        self._job = job
        self._lg = lg
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loadgen's sender")
        self._client: Client = client_of(job.address, job.connections)
        self._recording = Recording()
        self._start = 0.0
        self._turn = 0

    def __enter__(self) -> _Sender:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._client.open(), self._loop).result()
        except BaseException:
            self._end()
            raise
        self._start = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def issue(self, samples: list[Any]) -> None:
        """loadgen's: these queries are due now."""
        now = time.monotonic()
        self._loop.call_soon_threadsafe(self._send, [sample.id for sample in samples], now)

    def report(self) -> report.Report:
        stream = self._job.streams[0]
        seconds = max(self._recording.due, default=self._job.seconds) or self._job.seconds
        model = report.of_model(stream.model, self._recording, seconds, slo_ms=stream.slo_ms, rows=stream.rows)
        return report.Report(
            address=str(self._job.address),
            seconds=seconds,
            processes=1,
            busy=0.0,
            waited=self._client.waited,
            models=(model,),
        )

    def _send(self, numbers: list[int], due: float) -> None:
        messages = self._job.streams[0].messages
        for number in numbers:
            request = self._recording.open(due - self._start)
            self._turn = (self._turn + 1) % len(messages)
            self._client.send(messages[self._turn], partial(self._done, number, request))

    def _done(self, number: int, request: int, sent: float, done: float, failure: str | None) -> None:
        self._recording.close(request, sent - self._start, done - self._start, failure)
        if failure is None:
            self._complete(number)
            return
        slo_ms = self._job.streams[0].slo_ms
        assert slo_ms is not None
        self._loop.call_later(2 * slo_ms / 1000, self._complete, number)

    def _complete(self, number: int) -> None:
        self._lg.QuerySamplesComplete([self._lg.QuerySampleResponse(number, 0, 0)])
