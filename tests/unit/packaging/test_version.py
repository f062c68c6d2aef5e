"""The version stands in several files, because each is read by another program: they agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("src/gemlet/__init__.py", '__version__ = "{}"'),
        ("CMakeLists.txt", "project(gemlet VERSION {} "),
        ("packaging/chart/Chart.yaml", "\nversion: {}\n"),
        ("packaging/chart/Chart.yaml", "\nappVersion: {}\n"),
        ("packaging/serve-chart/Chart.yaml", "\nversion: {}\n"),
        ("packaging/serve-chart/Chart.yaml", "\nappVersion: {}\n"),
        ("packaging/docker/serve.Dockerfile", '"gemlet[serve,otel,${{RUNTIMES}}]=={}"'),
        ("packaging/docker/serve.Dockerfile", "gemlet-serve:{} ."),
        ("packaging/docker/serve.yaml", "gemlet-serve:{}}}"),
        ("packaging/docker/Dockerfile", "'gemlet[metrics,kube]=={}'"),
        ("CHANGELOG.md", "\n## {}"),
    ],
)
def test_each_file_has_it(file, words):
    assert words.format(VERSION) in (ROOT / file).read_text()


def test_a_tag_is_released_only_if_it_is_the_version():
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    pattern = re.findall(r"s/(\^version = .*?)/\\1/p", workflow)
    line = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version ="))
    assert pattern == [r'^version = "\(.*\)"']
    assert re.fullmatch(r'version = "(.*)"', line)[1] == VERSION
