"""The rules of Chrome's JSON format as Perfetto reads it, for traces of gemlet's: what breaks them is not shown."""

from __future__ import annotations

from typing import Any

PHASES = {"M", "X", "b", "e", "i", "C"}


def check(document: dict[str, Any]) -> None:
    """Raises AssertionError at the first event that Perfetto would drop or draw wrongly."""
    last = -1.0
    open_at: dict[tuple[Any, ...], list[float]] = {}  # ends of slices around, by thread
    begun: set[tuple[Any, ...]] = set()
    for event in document["traceEvents"]:
        assert event["ph"] in PHASES, event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        assert isinstance(event["name"], str), event
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name", "thread_sort_index"}, event
            continue
        assert event["ts"] >= max(0.0, last), event
        last = event["ts"]
        thread = (event["pid"], event["tid"])
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            around = open_at.setdefault(thread, [])
            while around and around[-1] <= event["ts"]:
                around.pop()
            # Slices of a thread are within each other or apart.
            assert not around or event["ts"] + event["dur"] <= around[-1] + 1e-3, event
            around.append(event["ts"] + event["dur"] - 1e-3)
        elif event["ph"] in {"b", "e"}:
            key = (event["cat"], event["id"], event["name"])
            assert (key in begun) == (event["ph"] == "e"), event
            begun.symmetric_difference_update({key})
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
    assert not begun
