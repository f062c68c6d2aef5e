from __future__ import annotations

import dataclasses
import re
import socket
import urllib.request

import msgspec

from gemlet.monitor import metrics
from tests.unit.monitor.status_example import example, mps_example

EVERY_NAME = {
    *metrics.GROUP_GAUGES,
    *(f"{name}_total" for name in metrics.GROUP_COUNTERS),
    *metrics.DEVICE_GAUGES,
    *(f"{name}_total" for name in metrics.DAEMON_COUNTERS),
    *metrics.DAEMON_GAUGES,
    "gemlet_daemon_info",
}


def test_every_metric_is_there_with_help():
    shown = metrics.render(example())
    names = set(re.findall(r"^(gemlet_\w+?)(?:\{| )", shown, re.MULTILINE))
    assert not EVERY_NAME - names
    helped = set(re.findall(r"^# HELP (\w+)", shown, re.MULTILINE))
    assert not EVERY_NAME - helped


def test_values_and_labels():
    shown = metrics.render(example())
    line = next(line for line in shown.splitlines() if line.startswith("gemlet_group_share{") and '"team"' in line)
    assert line.endswith(" 0.421")
    assert 'device="0"' in line
    assert "gemlet_denied_connections_total 2.0" in shown


def test_mps():
    shown = metrics.render(example())
    assert "gemlet_mps_up 0.0" in shown
    status = msgspec.structs.replace(example(), mps=mps_example())
    shown = metrics.render(status)
    assert "gemlet_mps_up 1.0" in shown
    assert "gemlet_mps_clients 1.0" in shown
    assert re.search(r'gemlet_group_sm_in_force\{.*"team".*\} 1\.0', shown)


def test_a_name_that_needs_escaping():
    status = example()
    device = status.devices[0]
    odd = dataclasses.replace(device.groups[0], name='a"b\\c\nd\x9b\u202e')
    status = msgspec.structs.replace(status, devices=(msgspec.structs.replace(device, groups=(odd,)),))
    assert r'group="a\"b\\c\nd\\x9b\\u202e"' in metrics.render(status)


def test_what_is_not_known_is_left_out():
    status = example()
    device = msgspec.structs.replace(status.devices[0], utilization=None, memory_used=None)
    shown = metrics.render(msgspec.structs.replace(status, devices=(device,)))
    assert "gemlet_device_utilization{" not in shown
    assert "gemlet_device_memory_total_bytes{" in shown


def test_served_over_http():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    latest = [None]
    server, thread = metrics.serve(lambda: latest[0], port=port)
    try:
        address = f"http://127.0.0.1:{port}/metrics"
        assert b"gemlet_group_share{" not in urllib.request.urlopen(address, timeout=5).read()
        latest[0] = example()
        assert b"gemlet_group_share{" in urllib.request.urlopen(address, timeout=5).read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
