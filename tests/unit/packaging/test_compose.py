from __future__ import annotations

from pathlib import Path

import yaml

from gemlet.kube.cdi import is_device_name
from gemlet.kube.names import CDI_GROUP_KIND

EXAMPLE = Path(__file__).resolve().parents[3] / "packaging/docker/compose.yaml"


def test_each_service_is_in_a_group_that_can_be_a_device():
    services = yaml.safe_load(EXAMPLE.read_text())["services"]
    assert services
    for service in services.values():
        named = dict(device.split("=", 1) for device in service["devices"])
        assert is_device_name(named[CDI_GROUP_KIND])
