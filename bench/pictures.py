"""Draws the pictures of README and docs from the results of the benchmarks.

    python -m bench.pictures --results bench/results/DIR [--out docs/images]

sharing.json gives share-over-time.svg, latency.json latency-distribution.svg. Needs matplotlib
(`pip install --group bench`). The same results always give the same bytes. Colours and lines can be told apart on white
and on black.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of middle brightness, so that they do on a light and on a dark page; told apart by people who see red and green alike.
INK = "#7d8590"
COLOURS = ["#3d8bd4", "#e0803a", "#2f9e77", "#b56fc2", "#c2a02b", "#d05a5a"]
SIZE = (8.0, 3.8)  # inches
NEIGHBOUR = "100us"
CURVES = ["alone", "slicing", "gemlet", "mps", "mps-gemlet", "gemini"]
TICKS = [m * 10.0**e for e in range(-2, 5) for m in (1, 2, 5)]  # ms
SHORTEST_TAIL = 0.001  # the part of requests at which the picture of latencies ends


@dataclass(frozen=True)
class Curve:
    label: str
    points: list[tuple[float, float]]  # x, y


def caption(about: Mapping[str, Any], source: str) -> str:
    """Where it was measured. On a simulated machine that comes first, in capitals."""
    where = f"{about['device']}, driver {about['driver']}, commit {about['commit']}, {source}"
    return f"SIMULATED, not a GPU: {where}" if about.get("simulated") else where


def tails(entries: Sequence[Mapping[str, Any]], neighbour: str = NEIGHBOUR) -> list[Curve]:
    """Latency in ms against the part of requests that took longer, for the ways of `CURVES` that were measured."""
    by_way = {e["way"]: e for e in entries if e["neighbour"] == neighbour or e["way"] == "alone"}
    curves = []
    for way in CURVES:
        if way in by_way:
            points = [(us / 1000, 1 - q) for q, us in by_way[way]["distribution_us"] if 1 - q >= SHORTEST_TAIL]
            curves.append(Curve(by_way[way]["words"], points))
    return curves


def courses(document: Mapping[str, Any], name: str = "elastic") -> tuple[list[Curve], list[tuple[float, str]]]:
    """Shares over time by group, and what happened when. Raises LookupError if it was not measured."""
    course = next((c for c in document.get("courses", []) if c["name"] == name), None)
    if course is None:
        raise LookupError(f"no course {name}")
    curves = [Curve(f"{g['name']}, {g['promise']}", [(t, share) for t, share in g["points"]]) for g in course["groups"]]
    return curves, [(at, event) for at, event in course["events"]]


def figure(title: str, subtitle: str) -> tuple[Any, Any]:
    """An empty picture and its axes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({
        "svg.hashsalt": "gemlet", "svg.fonttype": "path", "font.size": 10, "axes.spines.top": False,
        "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK,
        "xtick.color": INK, "ytick.color": INK, "legend.labelcolor": INK, "legend.frameon": False,
    })  # fmt: skip
    from matplotlib.figure import Figure

    drawing = Figure(figsize=SIZE, layout="constrained")
    axes = drawing.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    drawing.supxlabel(subtitle, fontsize=7.5, color=INK, x=0.01, ha="left")
    return drawing, axes


def share_over_time(document: Mapping[str, Any], path: Path) -> None:
    curves, events = courses(document)
    drawing, axes = figure("Share of the device, windows of 100 ms", caption(document["about"], "bench/sharing.py"))
    for curve, colour, style in zip(curves, COLOURS, ("-", "--"), strict=False):
        axes.plot(*zip(*curve.points, strict=True), color=colour, linestyle=style, linewidth=1.6, label=curve.label)
    for at, event in events:
        axes.axvline(at, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(event, (at, 1.14), xytext=(3, 0), textcoords="offset points", fontsize=8)
    axes.set(xlabel="seconds", ylabel="share", ylim=(0, 1.22), xlim=(0, max(x for c in curves for x, _ in c.points)))
    drawing.legend(loc="outside upper right", ncols=2, fontsize=8)
    save(drawing, path)


def latency_distribution(document: Mapping[str, Any], path: Path) -> None:
    curves = tails(document["latencies"])
    if not curves:
        raise LookupError(f"no latencies beside {NEIGHBOUR}")
    title = "Latency of requests of 200 µs beside a program that is always busy"
    drawing, axes = figure(title, caption(document["about"], "bench/latency.py"))
    for curve, colour in zip(curves, COLOURS, strict=False):
        axes.plot(*zip(*curve.points, strict=True), color=colour, linewidth=1.6, label=curve.label)
    axes.set(
        xscale="log", yscale="log", xlabel="latency, ms", ylabel="requests that took longer", ylim=(SHORTEST_TAIL, 1)
    )
    axes.set_yticks([1, 0.5, 0.1, 0.01, 0.001], ["all", "half", "10 %", "1 %", "0.1 %"])
    axes.minorticks_off()
    low, high = axes.get_xlim()
    axes.set_xticks([t for t in TICKS if low <= t <= high])
    axes.xaxis.set_major_formatter("{x:g}")
    drawing.legend(loc="outside right upper", fontsize=8)
    save(drawing, path)


def save(drawing: Any, path: Path) -> None:
    """Without a date, so that the same results give the same file."""
    drawing.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


PICTURES = {
    "share-over-time.svg": ("sharing.json", share_over_time),
    "latency-distribution.svg": ("latency.json", latency_distribution),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="directory with the JSON files of the benchmarks")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="default: %(default)s")
    o = parser.parse_args()
    try:
        import matplotlib as mpl  # noqa: F401  only to say early that it is missing
    except ImportError:
        print("error: matplotlib is not installed\nhint: pip install --group bench")
        return 1
    o.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name, (source, draw) in PICTURES.items():
        try:
            draw(json.loads((o.results / source).read_text()), o.out / name)
            print(o.out / name)
        except (OSError, LookupError) as error:
            failed = True
            print(f"not drawn: {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
