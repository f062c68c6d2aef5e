"""Models of a `gemlet serve` on this machine, from its metrics and its plan: rates, answers in time, where they run."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import socket
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import msgspec

from gemlet.decoding import from_json
from gemlet.errors import GemletError

SECONDS = 10.0  # for an answer, to its end
WINDOW = 60.0  # rates and quantiles are over so many seconds, or since somebody first asked
APART = 5.0  # seconds between samples that are kept, but for the last
LEAST = 1.0  # seconds between two questions to the server
MOST_BYTES = 8 * 2**20
BUCKETS = "gemlet_serve_latency_seconds_bucket"
_LINE = re.compile(r"^(gemlet_serve_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')  # in any order: the format knows none
_ESCAPED = re.compile(r"\\(.)")

Model = tuple[str, str]  # name, version
Counters = dict[tuple[str, Model, str], float]  # by metric, model and the third label, or ""


@dataclass(frozen=True, slots=True)
class Sample:
    """``at``: seconds of a steady clock."""

    at: float
    counters: Counters
    plan: dict[str, Any]


class _Task(msgspec.Struct):
    model: str
    rate: float | None = None
    capacity: float | None = None
    batch: int | None = None
    worst_ms: float | None = None
    slo_ms: float | None = None


class _GpuLet(msgspec.Struct):
    sm: float
    tasks: list[_Task] = []


class _Gpu(msgspec.Struct, rename={"gpu_lets": "lets"}):
    index: int
    gpu_lets: list[_GpuLet] = []


class _Plan(msgspec.Struct):
    """What is shown of a plan."""

    gpus: list[_Gpu] = []


def read(text: str) -> Counters:
    """Metrics of models from Prometheus' text format. Others are left out: those of gpu-lets have no version.

    Raises ValueError where a value is no number.
    """
    found: Counters = {}
    for name, labels, value in _LINE.findall(text):
        of = {label: _ESCAPED.sub(_unescaped, raw) for label, raw in _LABEL.findall(labels)}
        model, version = of.pop("model", None), of.pop("version", None)
        if model is not None and version is not None:
            more = next(iter(of.values()), "")
            found[name, (model, version), more] = float(value)
            if not math.isfinite(found[name, (model, version), more]):
                raise ValueError(f"{name} is {value}")
            if name == BUCKETS:
                _bound(more)
    return found


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def models(then: Sample, now: Sample) -> list[dict[str, Any]]:
    """A row a model: rate (requests a second), attained (part of them that were answered in time), p50_s and p99_s
    between the samples, None without requests; waiting now; and where the plan has it."""
    seconds = now.at - then.at
    grew: defaultdict[tuple[str, Model], dict[str, float]] = defaultdict(dict)
    for (name, whose, more), value in now.counters.items():
        grew[name, whose][more] = max(0.0, value - then.counters.get((name, whose, more), 0.0))
    places = _places(now.plan)
    rows = []
    for model in sorted({model for _, model, _ in now.counters}):

        def grown(metric: str, model: Model = model) -> dict[str, float]:
            return grew.get((metric, model), {})

        outcomes = grown("gemlet_serve_requests_total")
        asked, late = sum(outcomes.values()), sum(grown("gemlet_serve_late_total").values())
        buckets = {_bound(bound): count for bound, count in grown(BUCKETS).items()}
        in_time = max(0.0, outcomes.get("answered", 0.0) - late)
        rows.append(
            {
                "model": model[0],
                "version": model[1],
                "rate": asked / seconds if seconds > 0 else None,
                "attained": in_time / asked if asked else None,
                "p50_s": quantile(buckets, 0.5),
                "p99_s": quantile(buckets, 0.99),
                "waiting": now.counters.get(("gemlet_serve_queue", model, ""), 0.0),
                "places": [place for name in _named(model) for place in places.get(name, ())],
            }
        )
    return rows


def quantile(buckets: dict[float, float], part: float) -> float | None:
    """From cumulative counts by bound; None without any, or beyond the last bound."""
    total, low, below = max(buckets.values(), default=0.0), 0.0, 0.0
    if total <= 0:
        return None
    for bound in sorted(buckets):
        if buckets[bound] >= part * total:
            return (
                None if math.isinf(bound) else low + (bound - low) * (part * total - below) / (buckets[bound] - below)
            )
        low, below = bound, buckets[bound]
    return None


def _bound(text: str) -> float:
    return math.inf if text == "+Inf" else float(text)


def _named(model: Model) -> set[str]:
    """How a plan may call it."""
    return {model[0], f"{model[0]}:{model[1]}", f"{model[0]}/{model[1]}"}


def _places(plan: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Where the plan has what it calls so."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    keys = ("rate", "capacity", "batch", "worst_ms", "slo_ms")
    for gpu in plan.get("gpus", ()):
        for gpu_let in gpu.get("lets", ()):
            for task in gpu_let.get("tasks", ()):
                place = {"gpu": gpu["index"], "sm": gpu_let["sm"], **{key: task.get(key) for key in keys}}
                found[task["model"]].append(place)
    return found


class Serving:
    """Asks one server when the page asks. Thread-safe.

    While the server does not run, anybody on this machine may answer at its port: whatever that says, and however
    slowly, costs the page no more than these answers.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._where = "{}:{}".format(*address)
        self._samples: deque[Sample] = deque()
        self._failed: tuple[float, str, str | None] | None = None  # when a question did last, and how
        self._lock = threading.Lock()

    def answer(self) -> dict[str, Any]:
        """The document of the page. Raises GemletError."""
        with self._lock:
            now = time.monotonic()
            if self._failed is not None and now - self._failed[0] < LEAST:  # for those who waited for the same answer
                raise GemletError(self._failed[1], hint=self._failed[2])
            if not self._samples or now - self._samples[-1].at >= LEAST:
                try:
                    self._look(now)
                except GemletError as error:
                    self._failed = time.monotonic(), error.message, error.hint
                    raise
            last = self._samples[-1]
            return {"seconds": last.at - self._samples[0].at, "models": models(self._samples[0], last)}

    def _look(self, now: float) -> None:
        metrics, plan = self._get("/metrics"), self._get("/v2/plan")
        try:
            sample = Sample(now, read(metrics.decode()), msgspec.to_builtins(from_json(plan, _Plan)))
        except (ValueError, RecursionError) as error:  # what msgspec raises is a ValueError, too
            raise GemletError(
                f"what answers at {self._where} is no gemlet serve: {error}", hint="name the address of one"
            ) from None
        kept = self._samples
        if len(kept) > 1 and kept[-1].at - kept[-2].at < APART:
            kept.pop()
        kept.append(sample)
        while now - kept[0].at > WINDOW and len(kept) > 2:
            kept.popleft()

    def _get(self, path: str) -> bytes:
        where = self._where
        connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        over = threading.Event()
        try:
            connection.connect()
            late = threading.Timer(SECONDS, _give_up, (connection.sock, over))  # the socket's own is for a part of it
            late.daemon = True
            late.start()
            try:
                connection.request("GET", path)
                with connection.getresponse() as reply:
                    body = reply.read(MOST_BYTES)
            finally:
                late.cancel()
        except (OSError, http.client.HTTPException) as error:
            said = f"no answer within {SECONDS:g} s" if over.is_set() else error
            raise GemletError(f"gemlet serve does not answer at {where}: {said}", hint="start it there") from None
        finally:
            connection.close()
        if over.is_set():
            raise GemletError(f"gemlet serve does not answer at {where} within {SECONDS:g} s", hint="start it there")
        if reply.status != http.HTTPStatus.OK:
            raise GemletError(
                f"{where}{path} answers {reply.status}: gemlet serve answers 200",
                hint="name a server without tokens and TLS",
            )
        return body


def _give_up(connection: socket.socket, over: threading.Event) -> None:
    over.set()
    with contextlib.suppress(OSError):  # it has gone
        connection.shutdown(socket.SHUT_RDWR)
