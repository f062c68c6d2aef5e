"""Models of a `gemlet serve` on this machine, from its metrics and its plan: rates, answers in time, where they run."""

from __future__ import annotations

import http.client
import json
import math
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from gemlet.errors import GemletError

SECONDS = 10.0  # for an answer
WINDOW = 60.0  # rates and quantiles are over so many seconds, or since somebody first asked
LEAST = 1.0  # seconds between two questions to the server
MOST_BYTES = 8 * 2**20
_LINE = re.compile(r"^(gemlet_serve_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')  # in any order: the format knows none
_ESCAPED = re.compile(r"\\(.)")

Model = tuple[str, str]  # name, version
Counters = dict[tuple[str, Model, str], float]  # by metric, model and the third label, or ""


@dataclass(frozen=True, slots=True)
class Sample:
    """``at``: seconds of a steady clock."""

    at: float
    counters: Counters
    plan: dict[str, Any]


def read(text: str) -> Counters:
    """Metrics of models from Prometheus' text format. Others are left out: those of gpu-lets have no version."""
    found: Counters = {}
    for name, labels, value in _LINE.findall(text):
        of = {label: _ESCAPED.sub(_unescaped, raw) for label, raw in _LABEL.findall(labels)}
        model, version = of.pop("model", None), of.pop("version", None)
        if model is not None and version is not None:
            found[name, (model, version), next(iter(of.values()), "")] = float(value)
    return found


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def models(then: Sample, now: Sample) -> list[dict[str, Any]]:
    """A row a model: rate (requests a second), attained (part of them that were answered in time), p50_s and p99_s
    between the samples, None without requests; waiting now; and where the plan has it."""
    seconds = now.at - then.at
    rows = []
    for model in sorted({model for _, model, _ in now.counters}):

        def grown(metric: str, model: Model = model) -> dict[str, float]:
            return {
                more: max(0.0, value - then.counters.get((metric, model, more), 0.0))
                for (name, whose, more), value in now.counters.items()
                if name == metric and whose == model
            }

        outcomes = grown("gemlet_serve_requests_total")
        asked, late = sum(outcomes.values()), sum(grown("gemlet_serve_late_total").values())
        buckets = {_bound(bound): count for bound, count in grown("gemlet_serve_latency_seconds_bucket").items()}
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
                "places": list(_places(now.plan, model)),
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


def _places(plan: dict[str, Any], model: Model) -> Any:
    named = {model[0], f"{model[0]}:{model[1]}", f"{model[0]}/{model[1]}"}
    for gpu in plan.get("gpus", ()):
        for gpu_let in gpu.get("lets", ()):
            for task in gpu_let.get("tasks", ()):
                if task.get("model") in named:
                    keys = ("rate", "capacity", "batch", "worst_ms", "slo_ms")
                    yield {"gpu": gpu["index"], "sm": gpu_let["sm"], **{key: task.get(key) for key in keys}}


class Serving:
    """Asks one server when the page asks. Thread-safe."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._samples: deque[Sample] = deque()
        self._lock = threading.Lock()

    def answer(self) -> dict[str, Any]:
        """The document of the page. Raises GemletError."""
        with self._lock:
            now = time.monotonic()
            if not self._samples or now - self._samples[-1].at >= LEAST:
                self._samples.append(
                    Sample(now, read(self._get("/metrics").decode()), json.loads(self._get("/v2/plan")))
                )
                while now - self._samples[0].at > WINDOW and len(self._samples) > 2:
                    self._samples.popleft()
            last = self._samples[-1]
            return {"seconds": last.at - self._samples[0].at, "models": models(self._samples[0], last)}

    def _get(self, path: str) -> bytes:
        where = "{}:{}".format(*self._address)
        connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise GemletError(f"gemlet serve does not answer at {where}: {error}", hint="start it there") from None
        finally:
            connection.close()
        if reply.status != http.HTTPStatus.OK:
            raise GemletError(
                f"{where}{path} answers {reply.status}: expected 200", hint="name a server without tokens and TLS"
            )
        return body
