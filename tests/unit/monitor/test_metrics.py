from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest

from gemlet.monitor import metrics
from tests.unit.monitor.status_example import example, label, mps_example

EVERY_NAME = {
    *metrics.GROUP_GAUGES,
    *(f"{name}_total" for name in metrics.GROUP_COUNTERS),
    *metrics.DEVICE_GAUGES,
    *(f"{name}_total" for name in metrics.DEVICE_COUNTERS),
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
    status = msgspec.structs.replace(
        status, devices=(msgspec.structs.replace(device, groups=(odd,)),), labels=(label(odd.name),)
    )
    assert r'group="a\"b\\c\nd\\x9b\\u202e"' in metrics.render(status)


def test_what_is_not_known_is_left_out():
    status = example()
    device = msgspec.structs.replace(status.devices[0], utilization=None, memory_used=None)
    shown = metrics.render(msgspec.structs.replace(status, devices=(device,)))
    assert "gemlet_device_utilization{" not in shown
    assert "gemlet_device_memory_total_bytes{" in shown


def test_requests_are_a_histogram():
    shown = metrics.render(example())
    place = 'device="0",group="team"'
    found = re.findall(rf'gemlet_group_request_seconds_(\w+){{{place}(?:,le="(.*?)")?.*}} (.*)', shown)
    assert found == [
        ("bucket", "0.1", "3.0"),
        ("bucket", "0.2", "5.0"),
        ("bucket", "+Inf", "5.0"),
        ("count", "", "5.0"),
        ("sum", "", "0.5"),
    ]


def test_a_label_of_several_groups_has_sums_and_nothing_else():
    both = msgspec.structs.replace(label("batch"), label="(unnamed)", groups=("batch", "team"))
    shown = metrics.render(msgspec.structs.replace(example(), labels=(both,)))
    values = dict(re.findall(r'^(gemlet_group_\w+)\{.*group="\(unnamed\)".*\} (.*)$', shown, re.MULTILINE))
    assert float(values["gemlet_group_share"]) == pytest.approx(0.621)
    assert values["gemlet_group_clients"] == "1.0"
    assert values["gemlet_group_device_seconds_total"] == "12.5"
    assert not values.keys() & {"gemlet_group_speed", "gemlet_group_share_max", "gemlet_group_sm"}
    assert 'group="batch"' not in shown
