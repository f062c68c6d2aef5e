"""The counters of /metrics by the names that dashboards for Triton know, from the same numbers as ours.

Written here: prometheus_client gives every counter a name that ends in `_total`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.dispatch.statistics import Statistics

# Why requests fail, as ours and as Triton's metric has it; anything else is OTHER.
REASONS = {
    "cancelled": "CANCELED", "deadline": "REJECTED", "overload": "REJECTED", "unavailable": "REJECTED",
    "failed": "BACKEND",
}  # fmt: skip
ALL_REASONS = ("OTHER", "CANCELED", "BACKEND", "REJECTED")
COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("inference_request_success", "Requests that were answered", lambda counted: counted.success.count),
    ("inference_count", "Rows inferred", lambda counted: counted.rows),
    ("inference_exec_count", "Batches", lambda counted: sum(span.count for span in counted.batches.values())),
    ("inference_request_duration_us", "From arrival to answer", lambda counted: counted.success.ms * 1000),
    ("inference_queue_duration_us", "From arrival to the start of the batch", lambda counted: counted.queue.ms * 1000),
    ("inference_compute_input_duration_us", "In inference_compute_infer_duration_us here", lambda _: 0),
    ("inference_compute_infer_duration_us", "Of batches, for each request", lambda counted: counted.compute.ms * 1000),
    ("inference_compute_output_duration_us", "In inference_compute_infer_duration_us here", lambda _: 0),
)


def render(models: Iterable[ServedModel], waiting: Callable[[str], int]) -> bytes:
    """The text. ``waiting``: requests in a queue, by the model's label."""
    served = list(models)
    lines: list[str] = []
    for name, told, read in COUNTERS:
        lines += _family(name, told, "counter", [(_labels(each), read(each.statistics)) for each in served])
    failures = []
    for each in served:
        counts: Counter[str] = Counter(dict.fromkeys(ALL_REASONS, 0))
        for reason, count in each.statistics.refused.items():
            counts[REASONS.get(reason, "OTHER")] += count
        failures += [(f'{_labels(each)},reason="{reason}"', count) for reason, count in counts.items()]
    lines += _family("inference_request_failure", "Requests that were refused", "counter", failures)
    queues = [(_labels(each), waiting(each.spec.label)) for each in served]
    lines += _family("inference_pending_request_count", "Requests that wait", "gauge", queues)
    return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, told: str, kind: str, samples: Sequence[tuple[str, float]]) -> list[str]:
    values = [f"nv_{name}{{{labels}}} {int(value)}" for labels, value in samples]
    return [f"# HELP nv_{name} {told}", f"# TYPE nv_{name} {kind}", *values]


def _labels(served: ServedModel) -> str:
    name = served.spec.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'model="{name}",version="{served.spec.version}"'
