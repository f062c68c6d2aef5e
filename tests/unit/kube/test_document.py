"""docs/kubernetes.md names what there is, and all of it."""

from __future__ import annotations

import re
from pathlib import Path

from gemlet.kube import ask, metrics, names, slices, translate
from tests.unit.kube import fakes

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text()


def test_every_metric_is_explained_and_no_other():
    there = {*metrics.NODE, *metrics.GAUGES, *(f"{name}_total" for name in metrics.COUNTERS)}
    assert set(re.findall(r"gemlet_(?:pod|node)_\w+", TEXT)) == there


def test_every_name_of_ours_is_explained_and_no_other():
    attributes = {f"gemlet.dev/{name}" for name in slices.device(fakes.GPUS[0])["attributes"] if "/" not in name}
    asked = {*names.ANNOTATIONS, *names.RESOURCES, names.LABEL_TEMPLATE, names.LABEL_IGNORE, names.TAINT_FAILED}
    explained = asked | {names.TAINT_NO_DAEMON, *ask.ATTRIBUTES.values()}
    found = set(re.findall(r"(?<![\w.-])(?:gemlet\.dev|resource\.kubernetes\.io)/[\w-]+", TEXT))
    assert explained - found == set()
    assert found - explained - attributes - {names.CONFIG_API_VERSION, "gemlet.dev/translate"} == set()


def test_what_is_translated_is_named():
    for name in (*translate.RESOURCES, *translate.KAI):
        assert f"`{name}`" in TEXT, name
