"""The keys of memory that moves: resident, capacity, host_memory."""

from __future__ import annotations

import pytest

from gemlet.config.files import parse
from gemlet.config.render import render
from gemlet.errors import ConfigError

GIB = 1 << 30
TEXT = """
[daemon]
host_memory = "64GiB"

[groups.team]
memory = "40GiB"
resident = "10GiB"

[[devices]]
index = 0
capacity = "24GiB"
"""


def test_they_are_read_and_written() -> None:
    configuration = parse(TEXT, "gemlet.toml")
    (group,), (device,) = configuration.groups, configuration.devices
    assert (configuration.host_memory, group.resident, device.capacity) == (64 * GIB, 10 * GIB, 24 * GIB)
    again = parse(render(configuration), "gemlet.toml")
    assert (again.groups, again.devices, again.host_memory) == (
        configuration.groups,
        configuration.devices,
        configuration.host_memory,
    )


def test_nothing_is_the_default() -> None:
    configuration = parse("[groups.g]\nmin = 0.1\n", "gemlet.toml")
    assert configuration.host_memory is None
    assert configuration.groups[0].resident is None


def test_a_resident_limit_that_never_binds_is_noticed() -> None:
    (warning,) = parse('[groups.g]\nmemory = "4GiB"\nresident = "4GiB"\n', "gemlet.toml").warnings
    assert "never binds" in warning


@pytest.mark.parametrize("line", ['host_memory = "many"', "host_memory = 1.5", "host_memry = 1"])
def test_errors_have_places(line: str) -> None:
    with pytest.raises(ConfigError, match="2:"):
        parse(f"[daemon]\n{line}\n", "gemlet.toml")
