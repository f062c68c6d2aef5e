"""The recorded history as table, CSV and plot."""

from __future__ import annotations

import pytest

from gemlet.daemon.history_recorder import Recorded, RecordedSeries
from gemlet.errors import DaemonError
from gemlet.monitor import history
from gemlet.monitor.reader import decode_recorded


def recorded(**values):
    series = RecordedSeries(device="GPU-1", group="g", values=values)
    length = len(next(iter(values.values())))
    return Recorded(step_s=10, time=[1_700_000_000 + 10 * n for n in range(length)], series=[series], simulated=True)


def test_a_table_leaves_out_what_is_not_recorded_and_what_nobody_has():
    shown = history.text(
        recorded(
            share=[None, 0.5], target=[None, 0.5], memory=[None, 2.0**30], swapped=[None, 0.0], throttled=[None, 0.25]
        )
    )
    heading, columns, *rows = shown.splitlines()
    assert heading == "g on GPU-1, every 10 s  SIMULATED MACHINE, not a GPU"
    assert columns.split() == ["UNTIL", "SHARE", "DUE", "MEMORY", "THROTTLED", "WAITED", "FOR"]
    assert len(rows) == 1
    assert rows[0].split()[1:] == ["50%", "50%", "1", "GiB", "25%"]


def test_what_it_waited_for():
    made = recorded(
        share=[0.5, 0.5], **{"waits both busy": [0.4, 0.2], "waits ahead": [0.0, 0.3], "waits always": [0.0, 0.001]}
    )
    [series] = made.series
    assert [reason for reason, _ in history.waits(series)] == ["both busy", "ahead"]
    lines = history.text(made).splitlines()
    assert lines[2].endswith("both busy (40%)")
    assert lines[3].endswith("ahead (30%)")


def test_csv_has_every_column():
    lines = history.rows(recorded(share=[None, 0.5], **{"waits both busy": [None, 0.25]})).splitlines()
    assert lines == ["time,device,group,share,waits_both_busy", "1700000010,GPU-1,g,0.5,0.25"]


@pytest.mark.parametrize("count", [1, 3, 60, 1000])
def test_a_plot_fits_and_shows_what_was_promised(count):
    made = recorded(share=[0.5] * (count - 1) + [1.0], min=[0.3] * count, max=[1.0] * count)
    lines = history.plot(made, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("█")
    assert "min 30%, max 100%" in lines[-1]


def test_a_plot_of_nothing():
    assert "nothing recorded" in history.plot(recorded(share=[None, None]), width=80)
    assert "·" in history.plot(recorded(share=[None, 1.0]), width=80)


def test_another_schema_is_refused():
    with pytest.raises(DaemonError, match="schema 9"):
        decode_recorded({"schema": 9})
