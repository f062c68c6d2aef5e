"""`gemlet demo`: three programs with different shares on one device, measured against what they were promised.

First one program alone calibrates the kernel and gives the device's rate; then all three run at once. A program's share
is the work it completed per second over the rate of the one alone, so what sharing itself costs shows in the total.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import demo_processors, demo_report, demo_top, options
from gemlet.cli.demo_programs import ALONE, Programs
from gemlet.config.quantities import format_share
from gemlet.daemon import address, autostart
from gemlet.errors import DeviceError, GemletError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemlet.cli.demo_measurement import Trace
    from gemlet.daemon.connection import Connection

EXCLUSIVE_SECONDS = 2.0
SETTLE_SECONDS = 0.5  # the programs do not start at the same instant
DEFAULT_SECONDS = 10.0
SCHEMA = 1  # of the JSON
KERNEL_MICROSECONDS = 200  # several fit the window in flight, so a late wake-up costs nothing
SHARES = {"demo-a": 0.5, "demo-b": 0.3, "demo-c": 0.2}
NEXT = "gemlet run --min 30% -- python train.py"


@click.command()
@click.option(
    "--seconds",
    type=options.Number(min=3),
    metavar="SECONDS",
    default=DEFAULT_SECONDS,
    show_default=True,
    help="How long to measure",
)
@click.option("--kernel-us", type=options.Whole(20, 20000), default=KERNEL_MICROSECONDS, show_default=True, hidden=True)
@click.option("--no-top", is_flag=True, help="Do not end in `gemlet top`, even on a terminal")
@options.output("text", "json")
@options.simulate
@click.pass_obj
def command(  # noqa: PLR0917  its options
    socket: str | None, seconds: float, output: str, kernel_us: int, no_top: bool, simulate: bool
) -> int:
    """See three programs share one device: 50%, 30% and 20%.

    \b
    gemlet demo
    gemlet demo --simulate
    gemlet demo -o json --seconds 6

    Runs on the first GPU, or on a simulated machine where there is none; on a terminal it ends in `gemlet top`. Exits
    with 1 if any group's share was off its promise by more than 5% of the device, unless a simulated machine's programs
    had to wait for a busy processor.
    """
    # A terminal that is closed and a CI job that is stopped leave as little behind as Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    as_json = output == "json"
    simulate = simulate or (socket is None and not has_device())
    with _daemon(socket, simulate) as daemon:
        programs = Programs(daemon, kernel_us)
        if not as_json:
            click.echo("on a simulated machine, not a GPU" if simulate else "on the first GPU")
        programs.calibrate()
        rate = _exclusive_rate(programs)
        if not as_json:
            click.echo(f"one program alone completes {rate:.0f} kernels of {kernel_us} us a second")
            click.echo(f"now three at once, with minima of {', '.join(map(format_share, SHARES.values()))}:\n")
        waits = demo_processors.Waits()
        traces = _shared(programs, seconds, waits, demo_report.Progress(SHARES, rate) if not as_json else None)
        found = demo_report.results(_common_time(traces), SHARES, rate)
        if as_json:
            groups = [asdict(result) for result in found]
            total = demo_report.total(found)
            click.echo(json.dumps({"schema": SCHEMA, "simulated": simulate, "groups": groups, "total_share": total}))
        else:
            click.echo(f"\n{demo_report.table(found)}\n\n{demo_report.verdict(found, simulated=simulate)}")
            click.echo(f"next{', where there is a GPU' if simulate else ''}: {NEXT}")
        if not (no_top or as_json) and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            click.pause("\npress any key to watch the three in `gemlet top`, where q ends the demo")
            demo_top.watch(programs, SHARES, daemon.endpoint)
    busy = waits.part(seconds, len(SHARES)) if simulate else 0.0
    if busy > demo_processors.BUSY:
        click.echo(f"note: {demo_processors.note(busy)}", err=True)
        return 0
    return 0 if all(result.kept for result in found) else 1


def has_device() -> bool:
    """Whether a driver with at least one device answers. Asks NVML, which makes no context."""
    from gemlet.devices import nvml

    try:
        return bool(nvml.device_inventory())
    except DeviceError:
        return False


@contextlib.contextmanager
def _daemon(socket: str | None, simulate: bool) -> Iterator[Connection]:
    if not simulate:
        with autostart.find_or_start(address.candidates(socket)) as daemon:
            yield daemon
        return
    # A simulated machine of its own: nothing of the user's is in its way and nothing of it stays.
    with tempfile.TemporaryDirectory(prefix="gemlet-demo-") as directory:
        endpoint = address.Endpoint(Path(directory), "simulated")
        with autostart.find_or_start([endpoint], idle_exit=60.0, configured=False) as daemon:
            try:
                yield daemon
            finally:
                with contextlib.suppress(GemletError):
                    daemon.call("shutdown")
                    autostart.await_gone(endpoint)


def _exclusive_rate(programs: Programs) -> float:
    with programs.running({ALONE: 0.0}, EXCLUSIVE_SECONDS + SETTLE_SECONDS):
        while programs.alive():
            programs.read(timeout=0.2)
    rate = programs.traces[ALONE].rate(after=SETTLE_SECONDS)
    if rate <= 0:
        raise GemletError("a program that ran alone completed no kernel", hint="see `gemlet doctor`")
    return rate


def _shared(
    programs: Programs, seconds: float, waits: demo_processors.Waits, progress: demo_report.Progress | None
) -> dict[str, Trace]:
    show_at = time.monotonic() + 1.0
    with programs.running(SHARES, seconds + 2 * SETTLE_SECONDS):
        while programs.alive():
            programs.read(timeout=0.1)
            waits.look(programs.pids())
            if progress and time.monotonic() >= show_at:
                show_at = time.monotonic() + progress.interval_seconds
                progress.show(programs.traces)
    return programs.traces


def _common_time(traces: dict[str, Trace]) -> dict[str, Trace]:
    """The part of the traces in which all programs ran."""
    begin = max(trace.first for trace in traces.values()) + int(SETTLE_SECONDS * 1e9)
    end = min(trace.last for trace in traces.values())
    return {name: trace.between(begin, end) for name, trace in traces.items()}
