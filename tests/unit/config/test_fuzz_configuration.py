"""Any bytes are a configuration that can be written again, or a ConfigError in one printable line a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gemlet.config import files
from gemlet.config.render import render
from gemlet.errors import ConfigError
from tests import fuzzing

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.model import Configuration


def loaded(path: Path) -> tuple[Configuration | None, list[str]]:
    try:
        return files.load(path), []
    except ConfigError as error:
        return None, [str(each) for each in (error, *error.others)]


@pytest.mark.parametrize("name", ["gemlet.toml", "resource.conf", "resource-config.txt"])
def test_any_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    read = refused = 0
    for data in fuzzing.inputs("configuration"):
        path.write_bytes(data)
        configuration, problems = loaded(path)
        if configuration is None:
            refused += 1
            assert "cannot be understood" not in problems[0], (fuzzing.SEED, data)
            assert all(len(problem) < 5000 for problem in problems), (fuzzing.SEED, data[:200])
            continue
        read += 1
        again = files.parse(render(configuration), "gemlet.toml")
        assert (again.groups, again.users, again.devices, again.audit) == (
            configuration.groups,
            configuration.users,
            configuration.devices,
            configuration.audit,
        ), (fuzzing.SEED, data)
    assert read
    assert refused
