"""What a pod may ask for; every bad input names its field and a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import InvalidValue
from gemlet.kube.claims import NOTHING
from gemlet.kube.quantity import format_bytes, parse_bytes, parse_percent, parse_quantity
from gemlet.kube.request import Amounts, BadRequest, Settings, from_annotations, from_parameters, in_force
from gemlet.model import Priority

GIB = 1024**3
CONFIG = {"apiVersion": "gemlet.dev/v1alpha1", "kind": "ShareConfig"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("16Gi", 16 * GIB), ("1500M", 1_500_000_000), ("1e9", 10**9), (".5Ki", 512), ("0.5", 1), ("1k", 1000)],
)
def test_quantities_are_kubernetes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "16 Gi", "16GiB", "16gi", "K", "1.2.3", "16Gi\n", "--1", "1e", "9" * 100, "١"])
def test_text_that_is_not_a_quantity_is_refused(text):
    with pytest.raises(InvalidValue):
        parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_written_bytes_are_read_back(size):
    assert parse_bytes(format_bytes(size)) == size


def test_percent_is_whole():
    assert parse_percent("25") == 25
    for text in ("500m", "25%", "", "a quarter", "25 "):
        with pytest.raises(InvalidValue, match="not a whole number of percent") as caught:
            parse_percent(text)
        assert caught.value.hint == "write a number from 1 to 100, such as 25", "no size"


def ask(**annotations):
    return {f"gemlet.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}


def test_a_share_by_annotations_is_exact_unless_a_limit_is_given():
    asked = from_annotations(ask(memory="16Gi", compute="25"))
    assert asked == Amounts(memory=16 * GIB, compute=25, limit=25)
    elastic = from_annotations(ask(memory="16Gi", compute="25", compute_limit="80", priority="latency"))
    assert elastic == Amounts(memory=16 * GIB, compute=25, limit=80, priority=Priority.LATENCY)


def test_other_annotations_ask_for_nothing():
    assert from_annotations({"example.com/memory": "1"}) is None


@pytest.mark.parametrize(
    ("annotations", "field", "hint"),
    [
        (ask(memory="16Gi", compute="0"), "gemlet.dev/compute", "percent"),
        (ask(memory="16Gi", compute="101"), "gemlet.dev/compute", "percent"),
        (ask(memory="16Gi", compute="-1"), "gemlet.dev/compute", "percent"),
        (ask(memory="16Gi", compute="ten"), "gemlet.dev/compute", "quantity|number"),
        (ask(memory="0", compute="5"), "gemlet.dev/memory", "256Mi"),
        (ask(memory="200Gi", compute="5"), "gemlet.dev/memory", "141Gi or less"),
        (ask(memory="16GiB", compute="5"), "gemlet.dev/memory", "16Gi"),
        (ask(compute="5"), "gemlet.dev/memory", "add gemlet.dev/memory"),
        (ask(memory="16Gi"), "gemlet.dev/compute", "add gemlet.dev/compute"),
        (ask(memory="16Gi", compute="50", compute_limit="25"), "gemlet.dev/compute-limit", "leave it out"),
        (ask(memory="16Gi", compute="50", priority="urgent"), "gemlet.dev/priority", "latency"),
        (ask(memory="16Gi", compute="50", resident="16Gi"), "gemlet.dev/resident", "leave it out"),
        (ask(memory="16Gi", compute="50", resident="1Mi"), "gemlet.dev/resident", "256Mi or more"),
        (ask(memory="16Gi", compute="50", resident="some"), "gemlet.dev/resident", "16Gi"),
        (ask(memory="16Gi", compute="50", sm="30"), "gemlet.dev/sm", "needs MPS.*leave it out"),
        (ask(memory="16Gi", computes="50"), "gemlet.dev/computes", "did you mean gemlet.dev/compute"),
        (ask(unknown_thing="1"), "gemlet.dev/unknown-thing", "known"),
    ],
)
def test_bad_annotations_name_the_field_and_the_hint(annotations, field, hint):
    with pytest.raises(BadRequest) as caught:
        from_annotations(annotations, most=141 * GIB)
    assert caught.value.field == f"metadata.annotations[{field}]"
    assert caught.match(hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({**CONFIG, "computeLimt": 5}, "computeLimt.*computeLimit"),
        ({**CONFIG, "computeLimit": "80"}, "computeLimit"),
        ({**CONFIG, "computeLimit": 10}, "computeLimit: 10 is not valid"),
        ({**CONFIG, "sm": 50}, "config.sm: is not supported for pods: it needs MPS.*leave it out"),
        (
            {**CONFIG, "resident": "16Gi"},
            "config.resident: 16Gi is not valid: expected less than the share's memory of 16Gi",
        ),
        ({**CONFIG, "resident": 5}, "resident"),
        ({**CONFIG, "priority": "urgent"}, "priority"),
        ({**CONFIG, "kind": "Share"}, "kind: ShareConfig"),
        ({"kind": "ShareConfig"}, "apiVersion"),
        (None, "ShareConfig"),
        ([], "ShareConfig"),
    ],
)
def test_bad_parameters_name_the_field_and_the_hint(parameters, text):
    with pytest.raises(BadRequest, match=text):
        from_parameters(parameters, 25, 16 * GIB, field="config")


def test_parameters_default_to_the_exact_share():
    assert from_parameters(CONFIG, 25, 16 * GIB, field="config") == Settings(limit=25)
    given = {**CONFIG, "computeLimit": 80, "resident": "4Gi", "sm": 100}
    assert from_parameters(given, 25, 16 * GIB, field="c") == Settings(limit=80, resident=4 * GIB)


def test_a_running_share_can_be_made_smaller_and_its_limit_moved():
    granted = Amounts(memory=16 * GIB, compute=25, limit=25)
    assert in_force(granted, {}) == granted
    assert in_force(granted, ask(compute_limit="100")).limit == 100
    smaller = in_force(granted, ask(memory="8Gi", compute="10"))
    assert (smaller.memory, smaller.compute, smaller.limit) == (8 * GIB, 10, 10)
    assert in_force(granted, ask(resident="4Gi")).resident == 4 * GIB


def test_a_share_of_nothing_stays_one():
    """Its pod's annotations gave it all the time that others left, in their way as `latency`, on a GPU where the
    scheduler counts nothing for it any more."""
    assert in_force(NOTHING, ask(compute_limit="100", priority="latency")) == NOTHING


@pytest.mark.parametrize(
    "annotations", [ask(memory="17Gi"), ask(compute="26"), ask(compute_limit="24"), ask(resident="17Gi")]
)
def test_a_running_share_never_gets_more_than_the_scheduler_counts(annotations):
    with pytest.raises(BadRequest):
        in_force(Amounts(memory=16 * GIB, compute=25, limit=25), annotations)
