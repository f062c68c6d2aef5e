from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gemlet.cli import serve
from gemlet.kube.cdi import is_device_name
from gemlet.kube.names import CDI_GROUP_KIND

FOLDER = Path(__file__).resolve().parents[3] / "packaging/docker"


def services(file):
    return yaml.safe_load((FOLDER / file).read_text())["services"]


@pytest.mark.parametrize("file", ["compose.yaml", "serve.yaml"])
def test_each_service_is_in_a_group_that_can_be_a_device(file):
    assert services(file)
    for service in services(file).values():
        named = dict(device.split("=", 1) for device in service["devices"])
        assert is_device_name(named[CDI_GROUP_KIND])


def test_the_command_knows_the_options_that_servers_get_and_they_share_no_port():
    used = []
    for service in services("serve.yaml").values():
        verb, *arguments = service["command"]
        assert verb == serve.command.name
        given = serve.command.make_context(verb, list(arguments), obj=None, help_option_names=["-h", "--help"]).params
        assert given["host"] == "127.0.0.1", "the host's network is the container's, and nobody shows a token"
        assert f":{given['http_port']}/v2/health/ready" in service["healthcheck"]["test"][-1]
        used += [given["http_port"], given["grpc_port"]]
    assert len(used) == len(set(used)) == 4
