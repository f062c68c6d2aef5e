"""``gemlet infer``: one model by itself, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemlet.cli import completion, options
from gemlet.cli.serve import EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.backend_choice import Choice
    from gemlet.serve.standalone import Batch, Order

SCHEMA = 1


@click.command("infer")
@click.argument("model", shell_complete=completion.models)
@click.option("--batch", type=options.Whole(1), default=1, show_default=True, metavar="N", help="Rows of a batch.")
@click.option("--count", type=options.Whole(1), default=100, show_default=True, metavar="N", help="How many batches.")
@click.option("--gap", type=options.Duration(), metavar="TIME", help="Mean time between the starts of batches.")
@click.option("--poisson", is_flag=True, help="Draw the gaps of a Poisson process; without it they are equal.")
@click.option("--sm", "share", type=options.Fraction(), default=1.0, metavar="SHARE", help="Share of the device's SMs.")
@click.option(
    "--executor", type=click.Choice(EXECUTORS), default="auto", show_default=True,
    help="What runs the model; `gemlet serve` has the same.",
)  # fmt: skip
@click.option("--device", type=options.Whole(0), default=None, metavar="N", help="Index of the GPU.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="INPUT:SIZES", help="Sizes of dimensions that are -1: tokens:128."
)
@click.option(
    "--seed", type=options.Whole(), default=1, show_default=True, metavar="N", help="Seed of inputs and gaps."
)
@options.output("table", "json", "csv")
@click.pass_obj
def command(
    socket: str | None,
    /,
    model: str,
    *,
    executor: Any,
    device: int | None,
    shapes: tuple[str, ...],
    output: str,
    gap: float | None,
    **given: Any,
) -> int:
    """Run batches of MODEL, a built-in model or the directory of one, in an executor of its own.

    The inputs are random, and the first five batches are not counted.

    \b
    gemlet infer resnet50 --batch 8 --sm 50%
    gemlet infer models/language --count 1000 --gap 10ms --poisson -o csv
    gemlet infer models/resnet50 --executor modelled
    """
    import asyncio
    import os

    import gemlet.serve.server.requirements

    gemlet.serve.server.requirements.check()
    from gemlet.cli.load_run import parse_shape
    from gemlet.serve import standalone
    from gemlet.serve.server import backend_choice

    spec = standalone.find(model)
    choice = backend_choice.choose(executor, None if device is None else (device,))
    if choice.why:
        click.echo(f"gemlet: {choice.why}", err=True)
    if choice.backend == "mps":
        from gemlet.cli import serve_mps

        serve_mps.join(socket, os.environ)
    order = standalone.Order(gap_s=gap or 0.0, shapes=dict(map(parse_shape, shapes)), **given)
    batches = asyncio.run(standalone.run(spec, choice, order))
    if output == "csv":
        click.echo("at_s,computed_ms,total_ms")
        for each in batches:
            click.echo(f"{each.at_s:.6f},{each.computed_ms:.3f},{each.total_ms:.3f}")
    elif output == "json":
        _print_json(spec, choice, order, batches)
    else:
        click.echo("\n".join(_table(batches)))
        ms = sum(each.total_ms for each in batches) / len(batches)
        click.echo(f"gemlet: {1000 * order.batch / ms:.5g} rows/s, one batch after the other", err=True)
    return 0


def _print_json(spec: ModelSpec, choice: Choice, order: Order, batches: Sequence[Batch]) -> None:
    import msgspec

    document = {
        "schema": SCHEMA,
        "model": spec.name,
        "version": spec.version,
        "executor": choice.backend,
        "device": choice.devices[0],
        "batch": order.batch,
        "sm": order.share,
        "gap_s": order.gap_s,
        "batches": batches,
    }
    click.echo(msgspec.json.encode(document).decode())


def _table(batches: Sequence[Batch]) -> list[str]:
    from gemlet.monitor.tables import table
    from gemlet.simulate.report import percentile

    rows = []
    for name, values in (
        ("computed", [each.computed_ms for each in batches]),
        ("total", [each.total_ms for each in batches]),
    ):
        found = [sum(values) / len(values), *(percentile(values, part) or 0.0 for part in (0.5, 0.9, 0.99, 1.0))]
        rows.append([name, str(len(values)), *(f"{ms:.3f} ms" for ms in found)])
    header = ("time", "batches", "mean", "p50", "p90", "p99", "max")
    return table(header, rows, right=frozenset(header) - {"time"})
