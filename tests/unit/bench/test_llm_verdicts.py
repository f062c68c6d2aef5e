"""Speeds, totals and targets from the windows of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.llm.rows import ALONE, ROWS, Member
from bench.llm.verdicts import Results, lines, table
from bench.llm.work import Request, Work

if TYPE_CHECKING:
    from bench.report import Row as Line


def steady(pace: float, seconds: float = 5.0, digests: tuple[str, ...] = ()) -> Work:
    count = int(seconds * 100)
    times = [(i + 1) / 100 for i in range(count)]
    return Work(seconds, times, [t * pace for t in times], digests=list(digests))


def served(ttft: float, token: float, count: int = 10) -> Work:
    requests = [Request(i * 0.5, i * 0.5 + 0.4, ttft, ttft, (token, token)) for i in range(count)]
    return Work(6.0, [r.ended for r in requests], [float(i + 1) for i in range(count)], requests=requests)


def of(found: list[Line], what: str) -> Line:
    (line,) = [line for line in found if line.what.endswith(what)]
    return line


def two(way_paces: dict[str, list[tuple[float, float]]], row: str = "generators-2", alone: float = 100.0) -> Results:
    results = Results(ROWS[row])
    names = [member.name for member in results.row.members]
    for member in results.row.members:
        results.alone[member.load] = [steady(alone), steady(alone)]
    for way, paces in way_paces.items():
        for repeat, pair in enumerate(paces):
            results.put(way, repeat, {name: steady(pace) for name, pace in zip(names, pair, strict=True)})
    return results


def test_ways_are_compared_within_a_repeat_and_the_median_counts() -> None:
    found = lines(two({
        "slicing": [(100, 100), (80, 80), (90, 90)], "gemlet": [(98, 98), (80, 80), (45, 45)],
    }))  # fmt: skip
    ratio = of(found, "total, gemlet / slicing")
    assert ratio.value == pytest.approx(0.98)
    assert ratio.verdict == "met"
    assert "worst 0.5000 of 3" in ratio.note
    assert of(found, "total, slicing").value == pytest.approx(1.8)


def test_a_repeat_that_only_one_way_ran_is_not_compared() -> None:
    results = two({"slicing": [(100, 100)], "gemlet": [(98, 98), (10, 10)]})
    assert results.ratios("gemlet", "slicing") == [pytest.approx(0.98)]
    assert lines(two({"gemlet": [(98, 98)]}))


def test_each_minimum_is_held_against_the_speed_alone() -> None:
    found = lines(two({"slicing": [(60, 60)], "gemlet": [(80, 20)]}, row="minima"))
    assert of(found, "speed of generate-1, gemlet").verdict == "met"
    assert of(found, "speed of generate-2, gemlet").verdict == "missed"
    assert of(found, "speed of generate-1, slicing").verdict == ""


def test_halves_hold_in_every_second() -> None:
    results = two({"gemlet": [(60, 50)]}, row="generator-saturating")
    works = results.windows["gemlet"][0]
    works["generate-1"].done = [d if t < 3 else d - 30 * min(1.0, t - 3) for t, d in zip(
        works["generate-1"].times, works["generate-1"].done, strict=True)]  # fmt: skip
    found = lines(results)
    assert of(found, "worst second of generate-1, gemlet").verdict == "missed"
    assert of(found, "worst second of saturating-1, gemlet").verdict == "met"
    assert of(found, "turns give 1").verdict == "met"


def test_a_service_waits_no_longer_than_without_gemlet() -> None:
    results = Results(ROWS["service-100"])
    service, training = results.row.members
    results.alone = {service.load: [served(20, 10)], training.load: [steady(30, 6.0)]}
    results.put("slicing", 0, {service.name: served(21, 12), training.name: steady(24, 6.0)})
    results.put("gemlet", 0, {service.name: served(22, 12.1), training.name: steady(24, 6.0)})
    found = lines(results)
    assert of(found, "train-1 keeps, gemlet / slicing").verdict == "met"
    assert of(found, "TTFT p50, gemlet / slicing").value == pytest.approx(22 / 21, abs=1e-4)
    assert of(found, "TTFT p50, gemlet / alone").verdict == "met"  # slicing holds 1.1, so gemlet must
    assert of(found, "time per token p50, gemlet / alone").verdict == ""  # slicing does not
    assert of(found, "time per token p50, gemlet / slicing").verdict == "met"
    assert results.latencies(ALONE, service)["requests"] == 10


def test_a_service_that_fills_the_device_leaves_its_neighbour_the_rest() -> None:
    results = Results(ROWS["service-graph"])
    service, training = results.row.members
    alone = served(100, 10)
    assert alone.busy() == pytest.approx(0.2)
    results.alone = {service.load: [alone], training.load: [steady(30, 6.0)]}
    results.put("gemlet", 0, {service.name: served(105, 17), training.name: steady(21, 6.0)})
    found = lines(results)
    busy = alone.busy(*results.span())
    assert of(found, "that the service leaves, gemlet").value == pytest.approx(21 / 30 / (1 - busy), abs=1e-3)
    assert of(found, "TTFT p99, gemlet / alone").verdict == "met"
    assert of(found, "time per token p99, gemlet / alone").verdict == "missed"


def test_what_it_leaves_is_that_of_the_same_arrivals() -> None:
    results = Results(ROWS["service-graph"])
    service, training = results.row.members
    calm, busy = served(100, 10), served(900, 10)
    results.alone = {service.load: [calm, busy], training.load: [steady(30, 6.0)]}
    left = [1 - work.busy(*results.span()) for work in (calm, busy)]
    assert left[0] > left[1] + 0.3
    for repeat, part in enumerate([*left, 1.0]):
        pace = 30 * 0.8 * part if repeat < 2 else 1.0
        results.put("gemlet", repeat, {service.name: (calm, busy, busy)[repeat], training.name: steady(pace, 6.0)})
    found = lines(results)
    assert of(found, "that the service leaves, gemlet").value == pytest.approx(0.8, abs=1e-3)
    assert of(found, "TTFT p50, gemlet / alone").value == 1.0  # the third has no window alone


def test_promises_hold_again_soon_after_each_change() -> None:
    results = Results(ROWS["changing"])
    changing, other = results.row.members
    results.alone = {changing.load: [steady(100, 15.0)], other.load: [steady(1, 15.0)]}
    late = steady(0.5, 15.0)
    late.done = [d - 0.25 * min(1.0, max(0.0, t - 5.0)) for t, d in zip(late.times, late.done, strict=True)]
    results.put("gemlet", 0, {changing.name: steady(50, 15.0), other.name: late})
    found = lines(results)
    assert of(found, "held within 300 ms, gemlet").value == pytest.approx(5 / 6, abs=1e-3)
    assert of(found, "for good, gemlet").value == 0.0
    assert "worst 9" in of(found, "for good, gemlet").note


def test_answers_are_compared_only_where_they_are_the_same_alone() -> None:
    member = Member("generate")
    results = two({"gemlet": [(90, 90)]})
    results.windows["gemlet"][0]["generate-1"].digests = ["a", "x"]
    assert results.same_answers("gemlet", member) is None
    results.alone[member.load] = [steady(100, digests=("a", "b")), steady(100, digests=("a",))]
    assert results.same_answers("gemlet", member) is False
    assert of(lines(results), "answers of generate-1 as alone").verdict == "missed"
    results.alone[member.load] = [steady(100, digests=("a", "b")), steady(100, digests=("c",))]
    assert results.same_answers("gemlet", member) is None


def test_the_table_has_a_line_for_each_program_and_the_total() -> None:
    text = table([two({"slicing": [(60, 40)], "gemlet": [(50, 50)]})]).splitlines()
    assert text[1].split() == [
        "generators-2",
        "generate-1",
        "100.0/s",
        "0.600",
        "(0.600)",
        "-",
        "0.500",
        "(0.500)",
        "-",
    ]
    assert text[3].split()[:2] == ["total", "1.000"]
    assert table([Results(ROWS["minima"])]) == "no row was measured"
