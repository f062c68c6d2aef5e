"""What the rows of bench.graph_check are said to mean."""

from __future__ import annotations

import pytest

from bench import graph_causes

CASES = ("plain", "mps-100", "mps-47", "mps-47-busy")


def graph(case, patterns, test="graph 8", **more):
    wrong = sum("1" in each for each in patterns)
    row = {"captures": len(patterns), "wrong": wrong, "patterns": patterns, "worst": 3.0 * bool(wrong), "nans": 0}
    return {"case": case, "test": test, **row, "eager_afterwards": 0.0, **more}


def right(*cases):
    return [graph(case, ["0000", "0000"]) for case in cases]


def said(rows):
    return "\n".join(graph_causes.causes(rows))


def test_nothing_wrong_is_said_to_be_not_reproduced():
    assert said(right(*CASES)) == f"no graph was wrong in {', '.join(CASES)}: not reproduced"


def test_a_case_without_captures_is_no_case_in_which_all_was_right():
    dead = {"case": "mps-100", "test": "the end", "error": "exit code 1"}
    assert said([dead]) == "nothing was measured: no graph was captured"
    assert said([*right("plain"), dead]) == "no graph was wrong in plain: not reproduced"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (CASES, "it is not MPS"),
        (CASES[1:], "MPS, whatever the share"),
        (CASES[2:], "what libraries choose for fewer SMs"),
        (CASES[3:], "neighbours at work"),
    ],
)
def test_where_graphs_were_wrong_tells_what_it_depends_on(bad, words):
    rows = [graph(case, ["1111" if case in bad else "0000"]) for case in CASES]
    assert words in graph_causes.causes(rows)[0]


def test_a_capture_as_it_is_served_counts_where_results_differ_alone():
    served = {"case": "mps-47", "test": "served", "missing": {}, "failed_attempts": ["cuDNN error"]}
    assert "not reproduced" in said([*right("mps-47"), served])
    assert (
        "mps-47"
        in graph_causes.causes([*right("mps-47"), {**served, "failed_attempts": ["the graph's results differ from"]}])[
            0
        ]
    )


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["1000", "0000"], "only first replays"),
        (["1111", "0000"], "in every replay"),
        (["0100", "1111"], "a race"),
    ],
)
def test_which_replays_differ_tells_a_race_from_a_wrong_capture(patterns, words):
    assert words in said([graph("mps-47", patterns)])


def test_what_stands_in_the_place_of_the_results_is_told():
    first = {"differ": 8, "of": 8000, "places": [0], "wrong": ["nan"], "right": ["0.03"]}
    assert "8 of 8000 values differ, such as nan in place of 0.03" in said([graph("mps-47", ["1"], first_wrong=first)])


def test_a_setting_under_which_graphs_are_right_is_told():
    rows = [
        graph("mps-47", ["1111"]),
        graph("mps-47", ["0000"], test="graph 8, without cuDNN"),
        graph("mps-47", ["1111"], test="graph 8, cuBLAS, not Lt"),
    ]
    assert "mps-47: without cuDNN: right (0 of 1)" in said(rows)
    assert "mps-47: cuBLAS, not Lt: still wrong (1 of 1)" in said(rows)


def test_results_that_hardly_depend_on_the_input_leave_only_garbage():
    row = {"case": "plain", "test": "depends", "by_the_input": 0.0004, "from_single": 0.001}
    assert "only garbage can" in said([*right("plain"), row])
    assert "sees what matters" in said([*right("plain"), {**row, "by_the_input": 0.4}])


def test_memory_that_nobody_wrote_and_the_first_module_are_named():
    memory = {"case": "mps-47", "test": "memory, graph", "same_bits": False, "nans": 8, "worst": 1e30}
    layers = {
        "case": "mps-47", "test": "layers", "first": "network.5: Conv2d", "shape": [8, 32], "differ": 3, "of": 256,
        "nans": 0,
    }  # fmt: skip
    told = said([graph("mps-47", ["1111"]), memory, layers])
    assert "memory, graph: results rest on memory that nobody wrote" in told
    assert "network.5: Conv2d [8, 32]: 3 of 256 values" in told


def test_kernels_that_ran_only_where_graphs_were_wrong_are_named():
    rows = [*right("plain"), graph("mps-47", ["1111"])]
    rows += [{"case": "plain", "test": "kernels", "names": ["a", "b"]}]
    rows += [{"case": "mps-47", "test": "kernels", "names": ["b", "splitk"]}]
    assert graph_causes.causes(rows)[-1] == "kernel only where graphs were wrong: splitk"


def test_every_kind_of_row_has_a_cell():
    rows = [
        *right("plain"),
        {"case": "plain", "test": "about", "device": "H100", "sms": 132},
        {"case": "plain", "test": "eager 8", "runs": 6, "same_bits": 6, "wrong": 0, "worst": 0.0},
        {"case": "plain", "test": "served", "missing": {"8": "differ"}, "failed_attempts": ["a", "b", "c"]},
        {"case": "plain", "test": "kernels", "names": ["a"]},
        {"case": "plain", "test": "layers", "first": None, "captures": 10},
        {"case": "mps-47", "test": "graph 8", "error": "RuntimeError: no"},
        {"case": "mps-47", "test": "neighbour", "model": "vgg16"},
    ]
    lines = graph_causes.table(rows)
    assert len(lines) == 7
    assert "0 of 2 wrong" in lines[1]
    assert "RuntimeError: no" in lines[1]
    assert "3 attempts failed; without: 8" in "\n".join(lines)
