"""A plan as a picture: GPUs as bars, gpu-lets as blocks; as SVG and as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from gemlet.config.quantities import format_share

if TYPE_CHECKING:
    from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet

WIDTH = 64  # characters of a bar in a terminal
# Okabe and Ito's colours, which people with any colour vision can tell apart; names stand in the blocks anyway.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb")
TITLE = 90  # characters of 16 pixels that fit over the bars
KIND = 13  # characters of 9 pixels that fit beside a bar
BAR, GAP, LEFT, SPAN, TOP = 46, 14, 70, 760, 56  # pixels


def title(plan: Plan) -> str:
    """One line that says what is shown and what it rests on."""
    known = plan.origin == "measured" or plan.origin in plan.device
    kind = "" if known else f" ({plan.origin} profiles)"
    count = len(plan.gpus)
    return f"{plan.policy} on {count} GPU{'s' * (count != 1)}: {plan.device}{kind}"


def names(gpu_let: PlannedGpuLet) -> str:
    return "+".join(task.model for task in gpu_let.tasks)


def lines(plan: Plan) -> list[str]:
    """A line for each GPU."""
    return [
        f"GPU {gpu.index:<3}{_bar(gpu)} {format_share(gpu.sm)} of the SMs{gpu.device and f', {gpu.device}'}"
        for gpu in plan.gpus
    ]


def _bar(gpu: Gpu) -> str:
    scale = WIDTH / max(1.0, gpu.sm)
    cells = ""
    edge = 0.0
    for gpu_let in gpu.gpu_lets:
        edge += gpu_let.sm * scale
        width = max(1, round(edge) - len(cells))
        label = f"{names(gpu_let)} {format_share(gpu_let.sm)}"
        cells += "▕" + _cut(label, width - 1).ljust(width - 1, "░")
    return (cells + "▕").ljust(WIDTH + 1, "·") + ("" if gpu.sm > 1 - 1e-6 else "▏")


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else label[: max(0, width - 1)] + "…" * (width > 0)


def svg(plan: Plan) -> str:
    """The whole picture; a block's tooltip has the reasons."""
    models = sorted({task.model for task in plan.tasks()})
    colours = {model: COLOURS[place % len(COLOURS)] for place, model in enumerate(models)}
    widest = max([gpu.sm for gpu in plan.gpus] or [1.0])
    unit = SPAN / max(1.0, widest)
    height = TOP + len(plan.gpus) * (BAR + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SPAN + 20} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{LEFT + SPAN + 20}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="30" font-size="16">{escape(_cut(title(plan), TITLE))}</text>',
    ]
    for row, gpu in enumerate(plan.gpus):
        y = TOP + row * (BAR + GAP)
        parts.append(f'<text x="16" y="{y + BAR / 2 + 5:g}">GPU {gpu.index}</text>')
        if gpu.device:
            label = escape(_cut(gpu.device, KIND))
            parts.append(f'<text x="4" y="{y + BAR / 2 + 18:g}" font-size="9">{label}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{unit:.1f}" height="{BAR}" fill="#f4f4f4" stroke="#888888"/>')
        x = float(LEFT)
        for gpu_let in gpu.gpu_lets:
            parts += _block(gpu_let, x, y, gpu_let.sm * unit, colours)
            x += gpu_let.sm * unit
    return "\n".join([*parts, "</svg>"]) + "\n"


def _block(gpu_let: PlannedGpuLet, x: float, y: int, width: float, colours: dict[str, str]) -> list[str]:
    part = BAR / len(gpu_let.tasks)
    rows = [
        f'<rect x="{x:.1f}" y="{y + number * part:.1f}" width="{width:.1f}" height="{part:.1f}"'
        f' fill="{colours[task.model]}" stroke="#333333"/>'
        for number, task in enumerate(gpu_let.tasks)
    ]
    fitting = max(0, int(width / 7.5))
    texts = []
    for number, task in enumerate(gpu_let.tasks):
        label = task.model if number or len(gpu_let.tasks) > 1 else f"{task.model} {format_share(gpu_let.sm)}"
        if fitting >= 3:
            # An svg of its own cuts what is wider than its block, whatever the font.
            texts.append(
                f'<svg x="{x:.1f}" y="{y + number * part:.1f}" width="{width:.1f}" height="{part:.1f}">'
                f'<text x="4" y="{part / 2 + 5:.1f}" font-size="{min(13.0, part):.3g}">'
                f"{escape(_cut(label, fitting))}</text></svg>"
            )
    return [f"<g><title>{escape('; '.join(gpu_let.why))}</title>", *rows, *texts, "</g>"]
