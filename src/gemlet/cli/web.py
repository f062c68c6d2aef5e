"""`gemlet web`: devices, groups and their history in a browser."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import options
from gemlet.daemon import address
from gemlet.daemon.connection import connect
from gemlet.errors import GemletError

if TYPE_CHECKING:
    from gemlet.monitor.web.server import Server

TOKEN = "GEMLET_WEB_TOKEN"


@click.command()
@click.option(
    "--listen", metavar="ADDRESS", default="127.0.0.1:8080", show_default=True, help="Loopback address and port"
)
@click.option("--write", is_flag=True, help="Let the page change limits, as the user who runs this")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the token from this file instead of making one",
)
@click.option(
    "--hosts", metavar="A,B,C", help="Show these hosts over ssh, in place of this one; nothing can be changed"
)
@click.option("--serve", metavar="ADDRESS", help="Also show the models of a `gemlet serve` at this loopback address")
@click.option("--link", is_flag=True, help="Print the link of the page that the daemon itself started")
@click.option(
    "--until-eof", is_flag=True, hidden=True, help="End when standard input closes, with the daemon that started it"
)
@options.simulate
@click.pass_obj
def command(
    socket: str | None,
    *,
    listen: str,
    write: bool,
    token_file: Path | None,
    hosts: str | None,
    serve: str | None,
    link: bool,
    until_eof: bool,
    simulate: bool,
) -> None:
    """Serve a page that shows who uses the devices, who waits and why.

    \b
    gemlet web
    gemlet web --listen 127.0.0.1:9000 --write
    gemlet web --hosts gpu1,gpu2,gpu3
    gemlet web --serve 127.0.0.1:8000

    Open the link it prints. From another machine: ssh -L 8080:127.0.0.1:8080 HOST.
    """
    from gemlet.config.loopback import parse_loopback
    from gemlet.monitor.web.hosts import Hosts, parse_hosts
    from gemlet.monitor.web.questions import Questions
    from gemlet.monitor.web.server import Server, new_token
    from gemlet.monitor.web.serving import Serving

    endpoints = address.candidates(socket, simulate=simulate)
    if link:
        with connect(endpoints) as daemon:
            click.echo(_read(daemon.endpoint.web_link))
        return
    token = _read(token_file) if token_file else os.environ.pop(TOKEN, "") or new_token()
    if hosts and write:
        raise click.UsageError("--write changes this host's limits: leave it out with --hosts")
    specs = parse_hosts(hosts) if hosts is not None else None
    serving = Serving(parse_loopback(serve)) if serve else None
    if specs:  # what ends this process also ends its tunnels
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_IGN:  # nohup
                continue
            signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    others = Hosts(specs) if specs else None
    with contextlib.closing(others) if others else contextlib.nullcontext():
        questions = Questions(endpoints, write=write, hosts=others, serving=serving)
        try:
            server = Server(parse_loopback(listen), questions, token)
        except OSError as error:
            raise GemletError(f"{listen} cannot be used: {error.strerror}", hint="choose another --listen") from None
        with server:
            if until_eof:
                threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
            else:
                click.echo(server.link)
            server.serve_forever()


def _end_with_input(server: Server) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    server.shutdown()


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise GemletError(f"{path} cannot be read: {said}", hint="put `web` into [daemon] of gemlet.toml") from None
    if not text:
        raise GemletError(f"{path} is empty: expected a token", hint="write one into it")
    return text
