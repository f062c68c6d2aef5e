"""Metrics of a node's shares by pod, for Prometheus: the daemon's figures under the names that Kubernetes knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from gemlet.kube.share import Share

NODE = {
    "gemlet_node_shares": "Shares on this node",
    "gemlet_node_pods_refused": "Pods that may not start in a share of theirs",
    "gemlet_node_shares_left_open": "Shares in which a container could start that may not",
    "gemlet_node_shares_not_restored": "Shares that could not be brought back, and are tried again",
}
LABELS = ("namespace", "pod", "container", "claim", "uuid")
# name -> meaning, value of a group on a device in the status document; None is left out
GAUGES: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "gemlet_pod_share": ("Measured share of the GPU's time over 10 s", lambda g: g["share"].get("10s")),
    "gemlet_pod_share_min": ("Share of the GPU's time that is guaranteed", lambda g: g["min"]),
    "gemlet_pod_share_max": ("Share of the GPU's time that is never passed", lambda g: g["max"]),
    "gemlet_pod_share_target": ("Share of the GPU's time that it is due now", lambda g: g["target"]),
    "gemlet_pod_speed": ("Speed of its programs while they run, relative to their speed alone", lambda g: g["speed"]),
    "gemlet_pod_memory_bytes": ("Memory held, contexts and what is on the host included", lambda g: g["memory_used"]),
    "gemlet_pod_memory_limit_bytes": ("Limit of that", lambda g: g["memory_limit"]),
    "gemlet_pod_memory_swapped_bytes": ("Part of the memory that is on the host", lambda g: _swap(g, "swapped")),
    "gemlet_pod_memory_resident_limit_bytes": ("Limit of what is on the GPU", lambda g: g["resident_limit"]),
    "gemlet_pod_processes": ("Programs that use the share", lambda g: len(g["clients"])),
}
COUNTERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "gemlet_pod_device_seconds": ("GPU time used", lambda g: g["used_s"]),
    "gemlet_pod_busy_seconds": ("Its part of the time in which the GPU was busy", lambda g: g["busy_s"]),
    "gemlet_pod_throttled_seconds": ("Time with work in which the maximum made it wait", lambda g: g["throttled_s"]),
}


def _swap(group: Mapping[str, Any], field: str) -> float:
    return float(sum(client["swap"][field] for client in group["clients"] if client["swap"]))


class Counts(NamedTuple):
    """How much of the node is in trouble, in the order of `NODE`."""

    refused: int = 0
    left_open: int = 0
    not_restored: int = 0


NO_TROUBLE = Counts()


def render(shares: Iterable[Share], status: Mapping[str, Any], counts: Counts = NO_TROUBLE) -> str:
    """The metrics of ``shares`` by the daemon's ``status`` document, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Shares(list(shares), status, counts))
    return generate_latest(registry).decode()


class _Shares(Collector):
    def __init__(self, shares: list[Share], status: Mapping[str, Any], counts: Counts) -> None:
        self._shares = {share.group: share for share in shares}
        self._status = status
        self._counts = (len(self._shares), *counts)

    def collect(self) -> Iterable[Metric]:
        for (name, text), counted in zip(NODE.items(), self._counts, strict=True):
            yield GaugeMetricFamily(name, text, value=counted)
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for labels, group in self._groups():
                if (number := value(group)) is not None:
                    gauge.add_metric(labels, number)
            yield gauge
        for name, (text, count) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for labels, group in self._groups():
                if (number := count(group)) is not None:
                    counter.add_metric(labels, number)
            yield counter

    def _groups(self) -> Iterable[tuple[tuple[str, ...], Mapping[str, Any]]]:
        # Of a label that the group shares with others (`daemon/totals.py`) nothing can be said of it alone.
        busy = {(label["uuid"], label["label"]): label["busy_s"] for label in self._status.get("labels", ())}
        for device in self._status["devices"]:
            for group in device["groups"]:
                share = self._shares.get(group["name"])
                if share is not None and device["uuid"] in share.gpus:
                    claim = share.claim[1] if share.claim else ""
                    pod = share.pod
                    yield (
                        (pod.namespace, pod.name, pod.container, claim, device["uuid"]),
                        {
                            **group,
                            "busy_s": busy.get((device["uuid"], group["name"])),
                        },
                    )
