"""Moments of the recorded history: packed, unpacked and averaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.daemon.history_moment import (
    DEVICE_COLUMNS,
    GROUP_COLUMNS,
    PART,
    REASONS,
    Column,
    Moment,
    MomentSums,
    unpack,
)

GiB = 2.0**30


def group(**values):
    return tuple(values.get(column.name.replace(" ", "_"), 0.0 if column.rate else None) for column in GROUP_COLUMNS)


def of(values, name):
    return values[[column.name for column in GROUP_COLUMNS].index(name)]


def mean(moments):
    sums = MomentSums()
    for moment in moments:
        sums.add(moment)
    return sums.mean()


def columns_of(columns):
    return st.tuples(*(st.none() | st.floats(-1, column.most * column.step * 2) for column in columns))


def test_a_moment_comes_back_as_it_was():
    one = Moment(
        {3: group(share=0.5, min=0.25, memory=2 * GiB), 70000: group(speed=1.0)}, {1: (0.5, 0.5, GiB, 300.0, 40.0)}
    )
    back = unpack(one.pack())
    assert back.groups == one.groups
    assert back.devices[1] == pytest.approx(one.devices[1])
    assert unpack(Moment().pack()) == Moment()


@given(
    st.dictionaries(st.integers(0, 2**32 - 1), columns_of(GROUP_COLUMNS), max_size=5),
    st.dictionaries(st.integers(0, 2**32 - 1), columns_of(DEVICE_COLUMNS), max_size=5),
)
def test_whatever_is_packed_comes_back_within_its_bounds(groups, devices):
    back = unpack(Moment(groups, devices).pack())
    for before, after, columns in ((groups, back.groups, GROUP_COLUMNS), (devices, back.devices, DEVICE_COLUMNS)):
        assert before.keys() == after.keys()
        for series in before:
            for column, was, now in zip(columns, before[series], after[series], strict=True):
                if was is None:
                    assert now is None
                else:
                    assert now == pytest.approx(min(max(was, 0), column.most * column.step), abs=column.step * 0.51)


@given(st.binary(max_size=200))
def test_what_is_no_moment_is_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(data)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_moment_that_is_cut_off_is_refused(cut):
    import zlib

    whole = zlib.decompress(Moment({1: group(share=0.5)}).pack())
    for data in (whole[:-cut], whole + bytes(cut)):
        with pytest.raises(ValueError, match="than its columns"):
            unpack(zlib.compress(data))


def test_the_mean_counts_rates_as_zero_where_a_group_was_not_there():
    moments = [
        Moment({1: group(share=0.5, min=0.25, speed=0.5)}),
        Moment({1: group(share=0.5, min=0.25)}),
        Moment(),
        Moment(),
    ]
    found = mean(moments).groups[1]
    assert of(found, "share") == 0.25  # two of four seconds
    assert of(found, "min") == 0.25  # as long as it was there
    assert of(found, "speed") == 0.5  # as long as it was known
    assert of(found, "memory") is None


def test_there_is_a_column_for_each_reason_to_wait():
    assert [c.name for c in GROUP_COLUMNS if c.name.startswith("waits ")] == [f"waits {reason}" for reason in REASONS]
    assert Column("x", PART).most * PART > 6.5
