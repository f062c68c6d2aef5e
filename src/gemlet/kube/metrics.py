"""Metrics of a node's shares by pod, for Prometheus: the daemon's figures under the names that Kubernetes knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from gemlet.kube.share import Share

LABELS = ("namespace", "pod", "container", "claim", "uuid")
# name -> meaning, field of a group on a device in the status document
GAUGES = {
    "gemlet_pod_share_min": ("Share of the GPU's time that is guaranteed", "min"),
    "gemlet_pod_share_max": ("Share of the GPU's time that is never passed", "max"),
    "gemlet_pod_memory_bytes": ("GPU memory held, contexts included", "memory_used"),
    "gemlet_pod_memory_limit_bytes": ("Limit of GPU memory", "memory_limit"),
}
COUNTERS = {"gemlet_pod_device_seconds": ("GPU time used", "used_s")}


def render(shares: Iterable[Share], status: Mapping[str, Any]) -> str:
    """The metrics of ``shares`` by the daemon's ``status`` document, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Shares(list(shares), status))
    return generate_latest(registry).decode()


class _Shares(Collector):
    def __init__(self, shares: list[Share], status: Mapping[str, Any]) -> None:
        self._shares = {share.group: share for share in shares}
        self._status = status

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gemlet_node_shares", "Shares on this node", value=len(self._shares))
        for name, (text, field) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for labels, group in self._groups():
                if group[field] is not None:
                    gauge.add_metric(labels, group[field])
            yield gauge
        for name, (text, field) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for labels, group in self._groups():
                counter.add_metric(labels, group[field])
            yield counter

    def _groups(self) -> Iterable[tuple[tuple[str, ...], Mapping[str, Any]]]:
        for device in self._status["devices"]:
            for group in device["groups"]:
                share = self._shares.get(group["name"])
                if share is not None and device["uuid"] in share.gpus:
                    claim = share.claim[1] if share.claim else ""
                    pod = share.pod
                    yield (pod.namespace, pod.name, pod.container, claim, device["uuid"]), group
