"""What `gemlet load` does: options to jobs, jobs to reports, reports to stdout."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import click
import numpy as np

from gemlet.config import text_file
from gemlet.config.quantities import parse_seconds
from gemlet.errors import InvalidValue, UsageError
from gemlet.load import arrivals, inputs, measure, messages, model_metadata, processes, report
from gemlet.load import table as rows
from gemlet.load.job import Address, Job, Stream
from gemlet.monitor.tables import table
from gemlet.serve.plan import plan_files
from gemlet.serve.plan.demand_file import DemandedModel, DemandedService
from gemlet.serve.plan.model import Demand
from gemlet.simulate.serving import peak

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gemlet.load.report import Report

DURATION_S = 10.0
VARIANTS = 4  # different tensors that take turns, so that a cache of replies helps nobody
FASTEST = 1e6  # requests/s; above, drawing the arrivals takes longer than sending them
SHORTEST_S = 0.01  # of --every
INTERRUPTED = 130  # as a shell says it of Ctrl-C
MOST_RATES = 10_000  # of a range, each of which takes a run
LARGEST = 4 << 20  # bytes of a message above which there is one variant only


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options as they were given."""

    model: str | None
    rate: str | None
    steps: str | None
    swing: float | None
    period: str
    trace: Path | None
    step: str
    slo: str | None
    arrivals: arrivals.Spread | None
    variation: float | None
    times: float
    duration: str | None
    warmup: str
    every: str | None
    batch: int
    shapes: tuple[str, ...]
    seed: int | None
    peak: bool
    goal: float | None
    processes: int | None
    connections: int
    output: str


def run(url: str, demands: Path | None, given: Given) -> int:
    """Prints the reports; 1 if the goal was missed."""
    address = Address.parse(url)
    services = _services(demands, given)
    _check(services, given)
    with _stopped_by_sigterm():
        reports = _reports(services, address, given)
    if reports is None:
        return 1
    _print(reports, given.output)
    if reports and reports[-1].stopped:
        return INTERRUPTED
    worst = [each.worst_attainment for each in reports if each.worst_attainment is not None]
    return int(given.goal is not None and not given.peak and min(worst, default=1.0) < given.goal)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """As by Ctrl-C, which programs that a shell starts in the background ignore."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reports(services: list[DemandedService], address: Address, given: Given) -> list[Report] | None:
    """Of each run; None if not even the smallest rate of --peak holds."""
    reports: list[Report] = []
    for service in services:
        job = _job(address, service, given)
        if given.peak:
            found, highest = _highest(job, given)
            click.echo(
                f"gemlet: {peak.GOAL if given.goal is None else given.goal:.0%} in time up to {found:.4g} x", err=True
            )
            if highest is None:
                return None
            reports.append(highest)
            continue
        reports.append(_measure(job, given))
        if reports[-1].stopped:
            break
    return reports


def _check(services: list[DemandedService], given: Given) -> None:
    """Whether there is anything to send and to count. Raises UsageError."""
    if not 0 < given.times < inf:
        raise UsageError(
            f"--times {given.times:g} leaves nothing to send", hint="write a number above 0, such as --times 1.5"
        )
    warmup = _seconds(given.warmup, "--warmup")
    if given.every is not None and _seconds(given.every, "--every") < SHORTEST_S:
        raise UsageError(f"--every {given.every} is too short: expected a longer interval", hint="write --every 1s")
    for service in services:
        if service.seconds <= 0:
            raise UsageError("--duration is 0: expected more than 0", hint="write --duration 10s")
        if warmup >= service.seconds:
            hint = f"choose a --duration above {given.warmup}, or a shorter --warmup"
            raise UsageError(f"--warmup {given.warmup} leaves nothing of {service.seconds:g} s to count", hint=hint)
        rate = given.times * sum(_mean(served.rate, service.seconds) for served in service.models)
        if rate > FASTEST:
            raise UsageError(
                f"{rate:.3g} requests/s is more than a generator can send",
                hint=f"ask for at most {FASTEST:,.0f} requests/s",
            )


def _measure(job: Job, given: Given) -> Report:
    count = given.processes or processes.fitting(job)
    rate = sum(_mean(stream.rate, job.seconds) for stream in job.streams)
    by = "1 process" if count == 1 else f"{count} processes"
    click.echo(f"gemlet: {rate:.4g} requests/s for {job.seconds:g} s to {job.address}, by {by}", err=True)
    every = _seconds(given.every, "--every") if given.every is not None else None
    return measure.measure(job, count=count, warmup_s=_seconds(given.warmup, "--warmup"), every_s=every)


def _highest(job: Job, given: Given) -> tuple[float, Report | None]:
    """How much all rates can be multiplied by, and the run at that."""
    if any(stream.slo_ms is None for stream in job.streams):
        raise UsageError("--peak needs an SLO, and none is known", hint="give --slo 50ms")
    goal = peak.GOAL if given.goal is None else given.goal
    runs: dict[float, Report] = {}

    def holds(times: float) -> bool:
        runs[times] = _measure(_scaled(job, times), given)
        if runs[times].stopped:
            raise KeyboardInterrupt  # a run that is cut short says nothing of a rate
        if runs[times].bottleneck is not None:
            click.echo(f"gemlet: {runs[times].bottleneck}", err=True)
        return (runs[times].worst_attainment or 0.0) >= goal

    found = peak.highest(holds, steps=5)
    return found, runs.get(found)


def _scaled(job: Job, times: float) -> Job:
    scaled = (replace(stream, rate=arrivals.Scaled(stream.rate, times)) for stream in job.streams)
    return replace(job, streams=tuple(scaled))


def _job(address: Address, service: DemandedService, given: Given) -> Job:
    """Asks the server for each model's inputs and makes the messages. Raises LoadError, UsageError."""
    shapes = dict(parse_shape(text) for text in given.shapes)
    streams = []
    for number, served in enumerate(service.models):
        info = model_metadata.model(address, served.demand.model)
        chance = np.random.default_rng((service.seed, number))
        made: list[bytes] = []
        while len(made) < VARIANTS and sum(map(len, made)) < LARGEST:
            tensors = inputs.make(info.inputs, given.batch, shapes, chance)
            name = served.demand.model
            made.append(
                messages.grpc(name, tensors)
                if address.grpc
                else messages.http(address, name, tensors, binary=info.binary)
            )
        streams.append(
            Stream(
                model=served.demand.model,
                rate=arrivals.Scaled(served.rate, given.times) if given.times != 1 else served.rate,
                messages=tuple(made),
                spread=served.spread,
                variation=served.demand.variation,
                slo_ms=served.demand.slo_ms or info.slo_ms,
                rows=given.batch,
            )
        )
    return Job(
        address=address,
        streams=tuple(streams),
        seconds=service.seconds,
        seed=service.seed,
        connections=given.connections,
    )


def _services(path: Path | None, given: Given) -> list[DemandedService]:
    """What to send: of the file, or of the options, one for each rate of a range."""
    alone = (given.model, given.rate, given.steps, given.swing, given.trace, given.slo, given.arrivals, given.variation)
    length = _seconds(given.duration, "--duration") if given.duration is not None else None
    if path is not None:
        if any(option is not None for option in alone):
            raise UsageError(
                "leave these options out: the file of demands has models, rates, arrivals and SLOs",
                hint="use --times to multiply its rates",
            )
        service = plan_files.load_service(path)
        return [
            replace(
                service,
                seconds=service.seconds if length is None else length,
                seed=service.seed if given.seed is None else given.seed,
            )
        ]
    if given.model is None:
        raise UsageError("no model given", hint="give --model NAME and --rate 100, or a file of demands")
    spread = given.arrivals or "poisson"
    variation = {"uniform": 0.0, "poisson": 1.0}.get(spread, given.variation or 0.0)
    if (spread == "gamma") != (given.variation is not None):
        raise UsageError(
            "give --variation together with --arrivals gamma, and only then",
            hint="write --arrivals gamma --variation 4",
        )
    if given.variation is not None and not 0 < given.variation < inf:
        raise UsageError(
            f"--variation {given.variation:g} is not above 0",
            hint="write a number above 0: 1 is Poisson, 4 comes in bursts",
        )
    # An SLO of 0 means none: Demand needs a number, and the server may know a better one.
    slo_ms = 1000 * _seconds(given.slo, "--slo") if given.slo is not None else 0.0
    return [
        DemandedService(
            models=(
                DemandedModel(
                    demand=Demand(model=given.model, rate=rate.at(0.0), slo_ms=slo_ms, variation=variation),
                    rate=rate,
                    spread=spread,
                ),
            ),
            seconds=DURATION_S if length is None else length,
            seed=1 if given.seed is None else given.seed,
        )
        for rate in _rates(given)
    ]


def _rates(given: Given) -> list[arrivals.Rate]:
    if sum(option is not None for option in (given.rate, given.steps, given.trace)) != 1:
        raise UsageError(
            "expected exactly one of --rate, --steps and --trace",
            hint="give --rate 100, --steps 0s=100,10s=300 or --trace FILE",
        )
    try:
        if given.trace is not None:
            text = text_file.read_text(given.trace)
            if "," not in text:
                return [arrivals.parse_flux(text, _seconds(given.step, "--step"))]
            columns = arrivals.parse_csv(text)
            if given.model not in columns:
                raise UsageError(
                    f"{given.trace} has no column {given.model!r}", hint=f"choose one of {', '.join(columns)}"
                )
            return [columns[given.model]]
        if given.steps is not None:
            pairs = [part.split("=") for part in given.steps.split(",")]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError(f"{given.steps!r} is not a list of moments and rates")
            return [
                arrivals.Steps(tuple(parse_seconds(at) for at, _ in pairs), tuple(float(rate) for _, rate in pairs))
            ]
        assert given.rate is not None
        numbers = [float(part) for part in given.rate.split(":")]
        if len(numbers) not in {1, 3} or (len(numbers) == 3 and numbers[2] <= 0):
            raise ValueError("expected one number, or from:to:step")
        values = numbers if len(numbers) == 1 else _range(*numbers)
        if not values:
            raise ValueError(f"the range from {numbers[0]:g} to {numbers[1]:g} is empty")
        if given.swing is None:
            return [arrivals.constant(value) for value in values]
        return [arrivals.Sinusoid(value, given.swing, _seconds(given.period, "--period")) for value in values]
    except (ValueError, InvalidValue) as error:
        raise UsageError(
            f"the rate is not valid: {error}", hint="write --rate 100, --rate 100:500:100 or --steps 0s=100,10s=300"
        ) from None


def _range(first: float, last: float, step: float) -> list[float]:
    if not (last - first) / step < MOST_RATES:  # nor is what is no number
        raise ValueError(f"{first:g}:{last:g}:{step:g} is more than {MOST_RATES} rates: expected a larger step")
    return [first + step * number for number in range(int((last - first) / step + 1e-9) + 1)]


def _seconds(text: str, option: str) -> float:
    try:
        return parse_seconds(text)
    except InvalidValue as error:
        raise UsageError(f"{option}: {error}", hint=error.hint) from None


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 0:
        raise UsageError(
            f"--shape: {text!r} is not INPUT:SIZES", hint="write --shape tokens:128 or --shape image:3,224,224"
        )
    return name, shape


def _mean(rate: arrivals.Rate, seconds: float) -> float:
    return sum(rate.at(seconds * (step + 0.5) / 100) for step in range(100)) / 100


def _print(reports: list[Report], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(report.document(reports), indent=2))
        return
    if output == "csv":
        click.echo(rows.as_csv(reports), nl=False)
    else:
        lines = table(
            rows.HEADER,
            [rows.cells(model) for each in reports for model in each.models],
            right=frozenset(rows.HEADER) - {"model"},
        )
        click.echo("\n".join(lines))
    for each in reports:
        for note in rows.notes(each):
            click.echo(f"gemlet: {note}", err=output == "csv")
