"""``gemlet serve``: models of a repository, on gpu-lets, over the Open Inference Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemlet import typed_command
from gemlet.cli import options
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from gemlet.daemon.log_writer import LogWriter
    from gemlet.serve.server.options import ServerOptions
    from gemlet.serve.server.server import Started

SCHEMA = 1  # of `gemlet serve -o json`
_FILE = click.Path(dir_okay=False, path_type=Path)
EXECUTORS = ("auto", "green", "mps", "streams", "cpu", "modelled", "noop")


class Port(click.ParamType[Any]):
    """A port, 0 for any, `none` for no server."""

    name = "port|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value is None or isinstance(value, int) or value == "none":
            return value
        if not str(value).isdigit() or int(value) > 65535:
            raise options.BadValue(
                f"{value!r} is not a valid port: expected 0 to 65535, or none",
                "0 takes any free port, `none` none",
                param,
                ctx,
            )
        return int(value)


class Devices(click.ParamType[Any]):
    """Indices: 0,2."""

    name = "indices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdigit() for part in parts) or len(set(parts)) != len(parts):
            raise options.BadValue(
                f"{value!r} is not a list of devices: expected indices such as 0 or 0,2", "such as 0 or 0,2", param, ctx
            )
        return tuple(int(part) for part in parts)


class Range(click.ParamType[Any]):
    """Two numbers: 1:4."""

    name = "least:most"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        least, _, most = str(value).partition(":")
        if not least.isdigit() or not most.isdigit() or not 1 <= int(least) <= int(most):
            raise options.BadValue(
                f"{value!r} is not a range of devices: expected LEAST:MOST", "such as 1:4", param, ctx
            )
        return int(least), int(most)


def _write_example(context: click.Context, _parameter: click.Parameter, folder: Path | None) -> None:
    if folder is None:
        return
    from gemlet.serve.server.repository.example import write

    for path in write(folder):
        click.echo(str(path))
    serve = typed_command.command("serve", folder)
    click.echo(f"gemlet: now try `{serve}`; docs/serving/README.md has requests to send to it", err=True)
    context.exit()


@click.command("serve")
@click.argument("repository", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Address to listen at; beyond loopback it needs TLS and tokens; 0.0.0.0: all of this machine.",
)  # fmt: skip
@click.option("--http-port", type=Port(), default=8000, show_default=True, help="Port of HTTP and /metrics.")
@click.option("--grpc-port", type=Port(), default=8001, show_default=True)
@click.option("--http-socket", type=_FILE, help="HTTP at this Unix socket, for this user and root, in place of a port.")
@click.option("--grpc-socket", type=_FILE, help="gRPC at this Unix socket, for this user and root, in place of a port.")
@click.option("--tls-certificate", type=_FILE, help="Serve over TLS, with this certificate chain (PEM).")
@click.option("--tls-key", type=_FILE, help="The key of that certificate (PEM).")
@click.option(
    "--token-file", type=_FILE, help="Serve only clients with a token of this file, one a line; the file may change."
)
@click.option(
    "--max-request", type=options.Size(), default="64MiB", show_default=True, help="Largest size of one request."
)
@click.option(
    "--max-connections",
    type=options.Whole(1),
    default=4096,
    show_default=True,
    help="Most connections of each protocol.",
)
@click.option(
    "--executor", type=click.Choice(EXECUTORS), default="auto", show_default=True,
    help="What runs models: green contexts, one process per gpu-let under MPS, streams, the CPU, or modelled time.",
)  # fmt: skip
@click.option("--ray", metavar="ADDRESS", help="Place executors in this Ray cluster; auto: the one on this machine.")
@click.option("--scale", type=Range(), help="Least and most devices in use, such as 1:4; the others' executors rest.")
@click.option("--devices", type=Devices(), help="GPUs to serve on, such as 0,2; default: all.")
@click.option(
    "--gpus",
    type=options.Gpus(),
    metavar="N",
    help="The first N GPUs; or so many of each kind, by its profiles: h200=2,h100.json=1.",
)
@click.option("--profiles", type=_FILE, help="Profiles of these models on this kind of device: a file, or h200.")
@click.option("--plan", type=_FILE, help="Start with this plan: JSON of `gemlet plan`, or glet's ModelList.txt.")
@click.option("--demand", type=_FILE, help="Start with a plan for these rates: a demand file, or glet's rates.csv.")
@click.option("--replan/--no-replan", default=True, show_default=True, help="Follow the load with new plans.")
@click.option("--watch", is_flag=True, help="Load, reload and unload models as their files change.")
@click.option("--drop/--no-drop", default=True, show_default=True, help="Refuse requests whose answers would be late.")
@click.option(
    "--shared-memory/--no-shared-memory",
    default=True,
    help="Let clients on this machine use shared memory of their own user.",
)
@click.option(
    "--drain",
    type=options.Seconds(zero=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Time for requests to finish when the server stops.",
)
@click.option(
    "--hang", type=options.Seconds(), default=120.0, show_default=True, metavar="S", help="Longest time of one batch."
)
@click.option("--request-log", type=_FILE, help="Append a line of JSON for each request: where its time went.")
@click.option("--traces", is_flag=True, help="Send OpenTelemetry spans of each request by OTLP.")
@click.option(
    "--example", type=click.Path(path_type=Path), is_eager=True, expose_value=False, callback=_write_example,
    metavar="DIR", help="Write a repository of two models into DIR and stop.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@options.output("text", "json")
@click.pass_obj
def command(
    socket: str | None,
    /,
    repository: Path,
    *,
    verbose: bool,
    output: str,
    http_port: int | str,
    grpc_port: int | str,
    max_request: int,
    max_connections: int,
    drain: float,
    hang: float,
    gpus: Any,
    **given: Any,
) -> int:
    """Serve the models of REPOSITORY over the Open Inference Protocol v2: HTTP and gRPC.

    \b
    gemlet serve --example models
    gemlet serve models
    curl localhost:8000/v2/models/language

    The repository is laid out as Triton's: REPOSITORY/MODEL/config.yaml (or config.pbtxt) and REPOSITORY/MODEL/1/.
    SIGTERM or Ctrl-C ends it when its requests are answered; a second Ctrl-C at once. -o json prints the addresses
    when it is ready.
    """
    import asyncio

    import gemlet.serve.server.requirements

    gemlet.serve.server.requirements.check()
    from gemlet.serve.server.frontend.limits import Limits
    from gemlet.serve.server.options import ServerOptions

    if http_port == grpc_port == "none" and not (given["http_socket"] or given["grpc_socket"]):
        raise UsageError(
            "both --http-port and --grpc-port are none: nothing is left to serve",
            hint="leave out --http-port or --grpc-port",
        )
    given |= _devices(gpus, given)
    wanted = ServerOptions(
        repository=repository,
        http_port=None if http_port == "none" else int(http_port),
        grpc_port=None if grpc_port == "none" else int(grpc_port),
        limits=Limits(request_bytes=max_request, connections=max_connections),
        drain_s=drain,
        hang_s=hang,
        **given,
    )
    if wanted.executor == "mps":
        import os

        from gemlet.cli import serve_mps

        serve_mps.join(socket, os.environ)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(wanted, verbose=verbose, json=output == "json"))
    return 0


def _devices(gpus: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What --gpus comes to. Raises UsageError beside what says the same."""
    if gpus is None:
        return {}
    for name in ("devices", *(() if isinstance(gpus, int) else ("profiles",))):
        if given[name] is not None:
            raise UsageError(f"--gpus and --{name} say the same", hint=f"leave out --{name}, or --gpus")
    return {"devices": tuple(range(gpus))} if isinstance(gpus, int) else {"gpus": gpus}


async def _serve(wanted: ServerOptions, *, verbose: bool, json: bool) -> None:
    import asyncio
    import logging
    import os
    import signal

    from gemlet.daemon import logs
    from gemlet.daemon.log_writer import to_standard_error
    from gemlet.serve.end_signals import END_SIGNALS
    from gemlet.serve.server.frontend.logs import LogTail
    from gemlet.serve.server.server import Server

    writer = to_standard_error()
    logs.configure(logging.DEBUG if verbose else logging.INFO, writer)
    tail = LogTail()
    logging.getLogger("gemlet").addHandler(tail)
    stop = asyncio.Event()

    def end(number: int) -> None:
        if stop.is_set() and number == signal.SIGINT:
            os._exit(130)
        stop.set()

    for number in END_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        await Server(wanted, tail).run(stop, lambda started: _tell(wanted, started, writer, json=json))
    finally:
        writer.flush()


def _tell(wanted: ServerOptions, started: Started, log: LogWriter, *, json: bool) -> None:
    """The first lines: what it runs on, which models, where."""
    http = _address(wanted.host, started.http_port, wanted.http_socket)
    grpc = _address(wanted.host, started.grpc_port, wanted.grpc_socket)
    lines = _started_lines(wanted, started)
    if http and wanted.http_socket is not None:
        lines.append(f"HTTP {http}")
    elif http:
        url = f"{'https' if wanted.tls_certificate else 'http'}://{http}"
        lines.append(f"HTTP {url}  metrics {url}/metrics")
    if grpc:
        lines.append(f"gRPC {grpc}")
    for line in lines:
        log.tell(f"gemlet: {line}")
    log.flush()
    if json:
        import os

        import msgspec

        document = {
            "schema": SCHEMA,
            "http": http,
            "grpc": grpc,
            "executor": started.choice.backend,
            "devices": started.choice.devices,
            "note": started.note,
            "replanning": started.replanning,
            "models": [spec.name for spec in started.models],
            "pid": os.getpid(),
        }
        click.echo(msgspec.json.encode(document).decode())


def _address(host: str, port: int | None, path: Path | None) -> str | None:
    if path is not None:
        return f"unix:{path}"
    return f"{host}:{port}" if port is not None else None


def _started_lines(wanted: ServerOptions, started: Started) -> list[str]:
    from gemlet.config.quantities import format_share

    chosen = started.choice
    several = "devices" if len(chosen.devices) > 1 else "device"
    where = f"{several} {', '.join(map(str, chosen.devices))}"
    lines = [chosen.why] if chosen.why else []
    lines.append(f"{wanted.repository}: {len(started.models)} models, executor {chosen.backend} on {where}")
    if started.note:
        lines.append(f"executor: {started.note}")
    gpu_lets: dict[str, list[str]] = {}
    for gpu in started.plan.gpus:
        for gpu_let in gpu.gpu_lets:
            for task in gpu_let.tasks:
                gpu_lets.setdefault(task.model, []).append(f"{format_share(gpu_let.sm)} of device {gpu.index}")
    for spec in started.models:
        place = ", ".join(gpu_lets.get(spec.name, ["in the server itself"]))
        lines.append(f"  {spec.name} {spec.version}: {spec.platform}, SLO {spec.slo_ms:g} ms, {place}")
    lines += [f"note: {note}" for note in started.plan.notes]
    if started.plan.demands:
        lines.append(f"plan by {started.plan.policy}, profiles {started.plan.origin}")
    if started.replanning:
        lines.append("new plans follow the load; --no-replan keeps this one")
    return lines
