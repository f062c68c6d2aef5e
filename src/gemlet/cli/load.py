"""``gemlet load``: requests to a server of the Open Inference Protocol, when they are due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gemlet.cli import options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("load")
@click.argument("url")
@click.argument("demands", required=False, type=_FILE)
@click.option("-m", "--model", metavar="NAME", help="The model, if no file of demands is given.")
@click.option("--rate", metavar="R", help="Requests/s: 200; or from:to:step, a run for each: 100:500:100.")
@click.option("--steps", metavar="LIST", help="The rate from each moment on: 0s=100,10s=300.")
@click.option("--swing", type=options.Number(), metavar="X", help="Vary the rate by this fraction, as a sinusoid.")
@click.option("--period", metavar="TIME", default="60s", help="Period of --swing; default 60s.")
@click.option("--trace", type=_FILE, help="Rates from a file: one a line (glet's flux format), or a CSV.")
@click.option("--step", metavar="TIME", default="20s", help="How long each line of --trace lasts; default 20s.")
@click.option(
    "--slo", metavar="TIME", help="How long a reply may take; default: the SLO that the server gives for the model."
)
@click.option(
    "--arrivals", type=click.Choice(["poisson", "uniform", "gamma"]), help="Distribution of the gaps between requests."
)
@click.option(
    "--variation",
    type=options.Number(),
    metavar="CV",
    help="Of gamma arrivals: standard deviation of the gaps over their mean.",
)
@click.option("--times", type=options.Number(), default=1.0, metavar="X", help="Multiplies all rates.")
@click.option("--duration", metavar="TIME", help="Length of each run; default: the file's, else 10s.")
@click.option("--warmup", metavar="TIME", default="0s", help="Requests due before this are sent but not counted.")
@click.option(
    "--every",
    metavar="TIME",
    help="With -o json: also report the requests of each interval of this length, such as 1s.",
)
@click.option("--batch", type=options.Whole(1), default=1, metavar="N", help="Rows in each request; default 1.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="INPUT:SIZES",
    help="Sizes of dimensions that are -1 in the metadata: tokens:128.",
)
@click.option(
    "--seed", type=options.Whole(), metavar="N", help="Seed of arrivals and tensors; default: the file's, else 1."
)
@click.option("--peak", is_flag=True, help="Find the highest rates at which --goal is reached.")
@click.option(
    "--goal",
    type=options.Share(),
    metavar="PART",
    help="Exit with 1 if a smaller part is in time; default with --peak: 99%.",
)
@click.option(
    "--processes",
    type=options.Whole(1),
    metavar="N",
    help="Processes that generate load; default: as many as the rate needs.",
)
@click.option(
    "--connections",
    type=options.Whole(1),
    default=512,
    metavar="N",
    help="Connections of each process, at most; default 512.",
)
@options.output("table", "json", "csv")
def command(url: str, demands: Path | None, **given: Any) -> int:
    """Send requests to the server at URL, each when it is due, whether earlier ones were answered or not: an open loop.

    \b
    gemlet load http://127.0.0.1:8000 --model resnet50 --rate 200 --slo 50ms
    gemlet load grpc://127.0.0.1:8001 demands.toml --peak
    gemlet load http://127.0.0.1:8000 --model bert --rate 100:500:100 -o csv

    Any server of the Open Inference Protocol v2 will do: gemlet, Triton, KServe. Inputs are made from what it says of
    the model. Latencies count from when a request was due, so neither a server that stalls nor a late generator can
    hide it. The file of demands is that of `gemlet plan`; several models are loaded at once. Ctrl-C or SIGTERM
    ends a run early and prints what there is.
    """
    from gemlet.errors import GemletError

    try:
        from gemlet.cli import load_run
    except ModuleNotFoundError as error:
        raise GemletError(f"{error.name} is missing", hint="pip install 'gemlet[serve]'") from None
    return load_run.run(url, demands, load_run.Given(**given))
