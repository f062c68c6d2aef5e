"""What the rows of bench.graph_check mean: a table, and a sentence for each cause that they show or rule out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet.monitor.tables import table as as_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, Any]
TOLERANCE = 0.02  # capturing.CLOSE: what results of a graph may differ by
BASE = "graph 8"


def by_case(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows by case and test, in the order in which they came; neighbours' apart."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["test"] != "neighbour":
            found.setdefault(row["case"], {})[row["test"]] = row
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each test, a column for each case."""
    cases = by_case(rows)
    tests = dict.fromkeys(test for those in cases.values() for test in those)
    lines = [(test, *(cell(those.get(test)) for those in cases.values())) for test in tests]
    return as_table(("test", *cases), lines)


def cell(row: Row | None) -> str:
    """One test of one case, in few words."""
    if row is None:
        return "-"
    if "error" in row or "left_out" in row:
        return str(row.get("error") or row["left_out"])[:60]
    for keys, words in _CELLS:
        if keys <= row.keys():
            return words(row)
    return ", ".join(str(value) for key, value in row.items() if key not in {"case", "test"})


def _wrong_of(row: Row) -> str:
    return f"{row['wrong']} of {row['captures']} wrong" + (f", by {row['worst']:g}" if row["wrong"] else "")


def _served(row: Row) -> str:
    return f"{len(row['failed_attempts'])} attempts failed; without: {', '.join(row['missing']) or 'none'}"


def _memory(row: Row) -> str:
    return "the same" if row["same_bits"] else f"differs by {row['worst']:g}, {row['nans']} NaN"


# A kind of row is known by the keys that it has.
_CELLS: tuple[tuple[set[str], Callable[[Row], str]], ...] = (
    ({"captures", "wrong"}, _wrong_of),
    ({"runs"}, lambda row: f"{row['same_bits']} of {row['runs']} the same bits, worst {row['worst']:g}"),
    ({"missing"}, _served),
    ({"nans", "same_bits"}, _memory),
    ({"first"}, lambda row: f"first: {row['first']}" if row["first"] else "none differs"),
    ({"by_the_input"}, lambda row: f"by the image {row['by_the_input']:g}, from single {row['from_single']:g}"),
    ({"names"}, lambda row: f"{len(row['names'])} kernels"),
)


def causes(rows: Sequence[Row]) -> list[str]:
    """What follows, a sentence each; the first says whether anything was wrong at all."""
    cases = by_case(rows)
    wrong = {case: _wrong_tests(tests) for case, tests in cases.items() if any("captures" in r for r in tests.values())}
    if not wrong:
        return ["nothing was measured: no graph was captured"]
    bad = [case for case, tests in wrong.items() if tests]
    said = [_where(bad, list(wrong))]
    said += _of_the_check(cases)
    said += _of_the_model(cases)
    for case in bad:
        said += [f"{case}: {sentence}" for sentence in _of_a_case(cases[case])]
    said += _of_memory(cases)
    said += _of_kernels(cases, bad)
    return said


def _wrong_tests(tests: Mapping[str, Row]) -> list[str]:
    """Those in which a graph differed, captured as it is served or again and again."""
    served = tests.get("served", {})
    differ = [each for each in served.get("failed_attempts", ()) if "differ" in each]
    return ["served"] * bool(differ) + [test for test, row in tests.items() if row.get("wrong") and "captures" in row]


def _where(bad: Sequence[str], cases: Sequence[str]) -> str:
    if not bad:
        return f"no graph was wrong in {', '.join(cases)}: not reproduced"
    if "plain" in bad:
        return f"graphs were wrong in {', '.join(bad)}: also without MPS, so it is not MPS"
    if "mps-100" in bad:
        return f"graphs were wrong in {', '.join(bad)}, with all SMs too: MPS, whatever the share"
    if "mps-47" in bad and "mps-100" in cases:
        return f"graphs were wrong in {', '.join(bad)}, not with all SMs: what libraries choose for fewer SMs"
    if bad == ["mps-47-busy"] and "mps-47" in cases:
        return "graphs were wrong in mps-47-busy alone: neighbours at work"
    return f"graphs were wrong in {', '.join(bad)}"


def _of_the_check(cases: Mapping[str, Mapping[str, Row]]) -> list[str]:
    found = [tests["depends"] for tests in cases.values() if "by_the_input" in tests.get("depends", {})]
    if not found:
        return []
    by_input = max(row["by_the_input"] for row in found)
    if by_input < TOLERANCE:
        return [
            f"results depend on the image by {by_input:g} of their largest value, which the check lets pass"
            f" ({TOLERANCE:g}): rounding and other algorithms cannot fail it, only garbage can"
        ]
    return [f"results depend on the image by {by_input:g} of their largest value: the check sees what matters"]


def _of_the_model(cases: Mapping[str, Mapping[str, Row]]) -> list[str]:
    said = []
    for case, tests in cases.items():
        eager = [row for test, row in tests.items() if test.startswith("eager") and "runs" in row]
        if any(row["wrong"] for row in eager):
            said.append(f"{case}: the model without a graph is not twice the same, so it is not the graph")
        elif any(row["same_bits"] < row["runs"] for row in eager):
            worst = max(row["worst"] for row in eager)
            said.append(f"{case}: sums of the model differ in their last bits from run to run ({worst:g})")
    return said


def _of_a_case(tests: Mapping[str, Row]) -> list[str]:
    said = []
    patterns = [each for row in tests.values() for each in row.get("patterns", ()) if "1" in each]
    if patterns and all(each == "1" + "0" * (len(each) - 1) for each in patterns):
        said.append("only first replays differed: the graph was launched before it was ready")
    elif patterns and all(set(each) == {"1"} for each in patterns):
        said.append("a wrong graph is wrong in every replay: what was captured is wrong")
    elif patterns:
        said.append(f"a graph is wrong in some replays ({', '.join(sorted(set(patterns)))}): a race as it runs")
    first = next((row["first_wrong"] for row in tests.values() if row.get("first_wrong")), None)
    if first:
        said.append(
            f"{first['differ']} of {first['of']} values differ, such as {', '.join(first['wrong'])}"
            f" in place of {', '.join(first['right'])}"
        )
    base = tests.get(BASE, {})
    if base.get("wrong"):
        after = base.get("eager_afterwards", 0.0)
        if after > TOLERANCE:
            said.append(f"the model itself differs after that ({after:g}): captures spoil what it uses")
        for test, row in tests.items():
            if test.startswith(f"{BASE}, ") and "wrong" in row:
                how = "still wrong" if row["wrong"] else "right"
                said.append(f"{test.removeprefix(f'{BASE}, ')}: {how} ({row['wrong']} of {row['captures']})")
    layers = tests.get("layers", {})
    if layers.get("first"):
        said.append(
            f"the first module that differs is {layers['first']} {layers['shape']}: {layers['differ']} of"
            f" {layers['of']} values, {layers['nans']} NaN"
        )
    elif "first" in layers:
        said.append("no module differs while all outputs are kept: what reuses memory within the graph is at work")
    return said


def _of_memory(cases: Mapping[str, Mapping[str, Row]]) -> list[str]:
    said = []
    for test in ("memory, eager", "memory, graph"):
        unequal = [case for case, tests in cases.items() if tests.get(test, {}).get("same_bits") is False]
        if unequal:
            said.append(f"{', '.join(unequal)}: {test}: results rest on memory that nobody wrote")
    return said


def _of_kernels(cases: Mapping[str, Mapping[str, Row]], bad: Sequence[str]) -> list[str]:
    """Those that ran where graphs were wrong, and nowhere else."""
    ran = {case: tests.get("kernels", {}).get("names") for case, tests in cases.items()}
    names = {case: set(those) for case, those in ran.items() if those is not None}
    here = _all(names[case] for case in bad if case in names)
    there = _all(those for case, those in names.items() if case not in bad)
    if not here or not there:
        return []
    return [f"kernel only where graphs were wrong: {name}" for name in sorted(here - there)]


def _all(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)
