from __future__ import annotations

import msgspec
import pytest
from status_example import example

from gemlet.monitor.tables import bar, memory_text, table, text


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, "·" * 10), (0.5, "█████·····"), (1.0, "█" * 10), (7.0, "█" * 10), (-1.0, "·" * 10)]
)
def test_bar(share, drawn):
    assert bar(share, width=10) == drawn


def test_bar_marks_promise_and_limit():
    assert bar(0.2, promise=0.5, limit=0.8, width=10) == "██··|··]··"
    assert bar(0.2, promise=0.0, limit=1.0, width=10) == "██·······]"


def test_table_aligns():
    assert table(["A", "BB"], [["long", "1"], ["x", "22"]], right=frozenset({"BB"})) == [
        "A     BB",
        "long   1",
        "x     22",
    ]


def test_text_has_everything():
    shown = text(example())
    for word in ("Fake H200", "93%", "10 GiB / 150 GiB", "30%..60%", "below its minimum", "4242", "batch"):
        assert word in shown, word
    assert "SIMULATED" not in shown


def test_text_says_simulated():
    assert "SIMULATED" in text(msgspec.structs.replace(example(), simulated=True))


def test_empty_sections_say_so():
    shown = text(msgspec.structs.replace(example(), devices=(), groups=(), events=()))
    for words in ("no devices", "no groups", "no clients"):
        assert words in shown


def test_a_group_without_clients_is_listed_once():
    assert text(example()).count("batch") == 1


def test_memory_text():
    assert memory_text(None, 5) == "-"
    assert memory_text(1 << 30, None) == "1 GiB"
