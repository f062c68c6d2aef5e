"""Every metric of the daemon, once: name, meaning, labels, and where in the status document it comes from.

Shares are 0..1, times are in seconds and sizes in bytes, Prometheus' base units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gemlet.config.printable import printable
from gemlet.daemon.status import DaemonStatus, DeviceStatus, GroupStatus, Status
from gemlet.daemon.totals import LabelStatus

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

GROUP_LABELS = ("device", "uuid", "group")
DEVICE_LABELS = ("device", "uuid")
HELD_WINDOW = "10s"

GroupValue = Callable[[GroupStatus], float | None]
LabelValue = Callable[[LabelStatus], float]
DeviceValue = Callable[[DeviceStatus], float | None]

GROUP_GAUGES: dict[str, tuple[str, GroupValue]] = {
    "gemlet_group_share": ("Measured share of device time over 10 s", lambda g: g.share.get(HELD_WINDOW)),
    "gemlet_group_share_min": ("Share of device time that is guaranteed", lambda g: g.min),
    "gemlet_group_share_max": ("Share of device time that is never passed", lambda g: g.max),
    "gemlet_group_share_target": ("Share of device time the policy aims at now", lambda g: g.target),
    "gemlet_group_sm": ("Fraction of the multiprocessors", lambda g: g.sm),
    "gemlet_group_sm_in_force": ("1 while all processes have that fraction under MPS", lambda g: float(g.sm_in_force)),
    "gemlet_group_memory_bytes": ("Device memory held, contexts included", lambda g: g.memory_used),
    "gemlet_group_memory_limit_bytes": ("Limit of device memory", lambda g: g.memory_limit),
    "gemlet_group_unledgered_bytes": ("Contexts, modules and local memory", lambda g: g.unledgered),
    "gemlet_group_clients": ("Processes", lambda g: g.programs),
    "gemlet_group_speed": ("Speed of its programs lately, relative to alone", lambda g: g.speed),
    "gemlet_group_swapped_bytes": (
        "Memory of its programs that is on the host",
        lambda g: g.swapped,
    ),
}
# Of a label with several groups (`daemon/totals.py`) only what adds up is shown, as a sum.
ADD_UP = {
    "gemlet_group_share",
    "gemlet_group_share_min",
    "gemlet_group_share_target",
    "gemlet_group_memory_bytes",
    "gemlet_group_unledgered_bytes",
    "gemlet_group_clients",
    "gemlet_group_swapped_bytes",
}
# Since the daemon started, of all groups that had the label.
GROUP_COUNTERS: dict[str, tuple[str, LabelValue]] = {
    "gemlet_group_device_seconds": ("Device time used", lambda c: c.used_s),
    "gemlet_group_busy_seconds": ("Its part of the time in which the device was busy", lambda c: c.busy_s),
    "gemlet_group_throttled_seconds": ("Time with work in which the maximum made it wait", lambda c: c.throttled_s),
    "gemlet_group_launches": ("Submissions by its clients, gone ones included", lambda c: c.launches),
}
REQUESTS = "gemlet_group_request_seconds"
DEVICE_GAUGES: dict[str, tuple[str, DeviceValue]] = {
    "gemlet_device_utilization": ("Utilization as the driver measures it", lambda d: d.utilization),
    "gemlet_device_memory_bytes": ("Device memory in use, by anyone", lambda d: d.memory_used),
    "gemlet_device_memory_total_bytes": ("Device memory there is", lambda d: d.memory_total),
    "gemlet_device_power_watts": ("Power as the driver measures it", lambda d: d.power),
    "gemlet_device_temperature_celsius": ("Temperature as the driver measures it", lambda d: d.temperature),
    "gemlet_device_share": ("Device time all groups used over 10 s", lambda d: d.share.get(HELD_WINDOW)),
}
DEVICE_COUNTERS: dict[str, tuple[str, DeviceValue]] = {
    "gemlet_device_used_seconds": ("Device time used by all groups", lambda d: d.used_s),
    "gemlet_device_busy_seconds": ("Time in which the driver found it busy", lambda d: d.busy_s),
}
DAEMON_GAUGES: dict[str, tuple[str, Callable[[Status], float]]] = {
    "gemlet_mps_up": ("1 while gemlet's MPS control daemon takes programs", lambda s: float(s.mps.state == "on")),
    "gemlet_mps_failed": ("1 after it ended unexpectedly", lambda s: float(s.mps.state == "failed")),
    "gemlet_outside_processes": ("Processes that use a device outside gemlet", lambda s: len(s.outside)),
    "gemlet_unmanaged_processes": (
        "Processes that came to the daemon and are not governed",
        lambda s: len(s.unmanaged),
    ),
    "gemlet_mps_clients": ("Programs under gemlet's MPS", lambda s: len(s.mps.clients())),
}
DAEMON_COUNTERS: dict[str, tuple[str, Callable[[DaemonStatus], float]]] = {
    "gemlet_denied_connections": ("Clients that were not let into a group", lambda d: d.denied),
    "gemlet_ignored_messages": ("Messages of clients that made no sense", lambda d: d.ignored),
}


class StatusCollector(Collector):
    """Turns a status into metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        return list(_metrics(self._status))


def render(status: Status) -> str:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    return generate_latest(registry).decode()


def _metrics(status: Status) -> Iterator[Metric]:
    if status.daemon is None:
        return
    info = GaugeMetricFamily("gemlet_daemon_info", "The daemon", labels=("version", "policy", "simulated"))
    info.add_metric((status.daemon.version, status.daemon.policy, str(status.simulated).lower()), 1)
    yield info
    for name, (text, of_daemon) in DAEMON_COUNTERS.items():
        yield CounterMetricFamily(name, text, value=of_daemon(status.daemon))
    for name, (text, of_status) in DAEMON_GAUGES.items():
        yield GaugeMetricFamily(name, text, value=of_status(status))
    for kind, definitions in ((GaugeMetricFamily, DEVICE_GAUGES), (CounterMetricFamily, DEVICE_COUNTERS)):
        for name, (text, of_device) in definitions.items():
            family = kind(name, text, labels=DEVICE_LABELS)
            for device in status.devices:
                _add(family, (str(device.index), device.uuid), of_device(device))
            yield family
    yield from _of_groups(status)


def _of_groups(status: Status) -> Iterator[Metric]:
    placed = {(device.uuid, group.name): group for device in status.devices for group in device.groups}
    rows = [
        (
            label,
            (str(label.device), label.uuid, printable(label.label, lines=True)),
            [placed[label.uuid, name] for name in label.groups if (label.uuid, name) in placed],
        )
        for label in status.labels
    ]
    for name, (text, of_group) in GROUP_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=GROUP_LABELS)
        for label, labels, groups in rows:
            alone = label.groups == (label.label,)
            known = [value for group in groups if (value := of_group(group)) is not None]
            if known and (alone or name in ADD_UP):
                gauge.add_metric(labels, sum(known))
        yield gauge
    for name, (text, of_label) in GROUP_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=GROUP_LABELS)
        for label, labels, _ in rows:
            counter.add_metric(labels, of_label(label))
        yield counter
    requests = HistogramMetricFamily(REQUESTS, "How long requests of the class latency took", labels=GROUP_LABELS)
    for label, labels, _ in rows:
        if label.latency:
            buckets = [(str(bound), count) for bound, count in label.latency.buckets]
            requests.add_metric(labels, [*buckets, ("+Inf", label.latency.requests)], label.latency.sum_s)
    yield requests


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
