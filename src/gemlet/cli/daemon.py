"""`gemlet daemon`: puts the daemon together from the native server, NVML and the layers above, and runs it."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemlet.cli import options
from gemlet.errors import ConfigError, DaemonError, GemletError, NotBuilt, UsageError
from gemlet.model import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread

    from gemlet.daemon.address import Endpoint
    from gemlet.daemon.configuration import ConfigurationFile
    from gemlet.daemon.native import Server
    from gemlet.daemon.service import Service
    from gemlet.daemon.status import Status
    from gemlet.model import Configuration
    from gemlet.monitor.metrics_server import MetricsServer


@click.command()
@click.option("--config", metavar="FILE", help="gemlet.toml, or a configuration of Gemini; default: the user's or /etc")
@click.option("--no-config", is_flag=True, help="Read no configuration")
@click.option("--policy", type=click.Choice(POLICIES), help="How device time is shared; default: the configuration's")
@click.option("--ipc-dir", type=click.Path(path_type=Path), help="Also listen at DIR/GROUP for each configured group")
@click.option("--system", is_flag=True, help="Serve all users of this machine at /run/gemlet (as root)")
@options.simulate
@click.option(
    "--metrics-port",
    type=options.Whole(1, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on this loopback port",
)
@click.option("--runtime-dir", type=click.Path(path_type=Path), help="Where the sockets go; one daemon per directory")
@click.option("--idle-exit", type=options.Number(min=0.1), metavar="SECONDS", help="End after this long without use")
@click.option("--no-history", is_flag=True, help="Record no history")
@click.option("--take-over", is_flag=True, help="Replace the daemon that runs, while its programs run on")
@click.option("--ready-fd", type=options.Whole(), hidden=True, help="Descriptor to write to when ready")
@click.option("-v", "--verbose", is_flag=True, help="Log more")
def command(
    *,
    config: str | None,
    no_config: bool,
    policy: str | None,
    ipc_dir: Path | None,
    system: bool,
    simulate: bool,
    metrics_port: int | None,
    runtime_dir: Path | None,
    idle_exit: float | None,
    no_history: bool,
    take_over: bool,
    ready_fd: int | None,
    verbose: bool,
) -> None:
    """Run the daemon in the foreground, logging to stderr.

    \b
    gemlet daemon
    gemlet daemon --config gemlet.toml
    gemlet daemon --system --metrics-port 9532
    gemlet daemon --ipc-dir /tmp/gemini/ipc --config resource.conf

    `gemlet run` starts one by itself; run it yourself to serve several users, or under systemd.

    After an upgrade, --take-over replaces the daemon while its programs run on. SIGUSR2 makes a daemon start its
    successor by itself.
    """
    import asyncio

    from gemlet.daemon import logs
    from gemlet.daemon.answers import api
    from gemlet.daemon.inventory import NvmlInventory
    from gemlet.daemon.log_writer import to_standard_error
    from gemlet.daemon.options import DaemonOptions
    from gemlet.daemon.service import Service, run_until_signalled

    logs.configure(logging.DEBUG if verbose else logging.INFO, to_standard_error())
    if system and simulate:
        raise UsageError(
            "--system and --simulate do not go together: one serves real devices, the other simulated ones",
            hint="give one of them",
        )
    if config and no_config:
        raise UsageError("--config and --no-config do not go together", hint="give one of them")
    endpoint = _endpoint(system, simulate, runtime_dir)
    path = None if no_config else _configuration(config, system=system)
    _make(endpoint.directory, system)
    if endpoint.kind == "simulated":
        endpoint.machine.mkdir(mode=0o700, exist_ok=True)
        os.environ["GEMLET_SIM_DIR"] = str(endpoint.machine)
    service = Service(
        DaemonOptions(
            endpoint=endpoint,
            config=path,
            config_optional=path is not None and not Path(path).exists(),
            policy=policy,
            ipc_dir=ipc_dir.absolute() if ipc_dir else None,
            simulated=simulate,
            shared=system,
            idle_exit=idle_exit,
            ready_fd=ready_fd,
            take_over=take_over,
            history=None if no_history else _history(endpoint, usual_place=runtime_dir is None),
        ),
        server=native_server(policy),
        inventory=NvmlInventory(simulated=simulate),
        metrics=metrics_text(),
        beside=lambda: _beside(service, metrics_port),
    )
    try:
        asyncio.run(run_until_signalled(service, api))
    except OSError as error:
        raise DaemonError(f"the daemon cannot run in {endpoint.directory}: {error}") from None


@contextlib.contextmanager
def _beside(service: Service, metrics_port: int | None) -> Iterator[None]:
    configured = service.configuration.current
    with (
        serving_metrics(lambda: service.observer.latest, metrics_port, configured=configured.metrics_port),
        serving_page(service.options.endpoint, configured.web),
    ):
        yield


def _endpoint(system: bool, simulate: bool, runtime_dir: Path | None) -> Endpoint:
    from gemlet.daemon import address

    if runtime_dir is None:
        return address.system() if system else address.simulated() if simulate else address.user()
    return address.Endpoint(runtime_dir.absolute(), "system" if system else "simulated" if simulate else "user")


def _history(endpoint: Endpoint, *, usual_place: bool) -> Path:
    from gemlet import paths

    # The usual directories are empty after a reboot. Any other, as that of the simulated machine, has its own history.
    usual = usual_place and endpoint.kind != "simulated" and not os.environ.get("GEMLET_RUNTIME_DIR")
    directory = paths.state_dir(system=endpoint.kind == "system") if usual else endpoint.directory
    return Path(directory, "history.db")


def _make(directory: Path, system: bool) -> None:
    try:
        directory.mkdir(mode=0o755 if system else 0o700, parents=True, exist_ok=True)
    except OSError as error:
        hint = (
            "run it as root, or leave out --system: the daemon then serves you alone"
            if system
            else "choose another --runtime-dir"
        )
        raise DaemonError(f"{directory} cannot be made: {error.strerror}", hint=hint) from None


def _configuration(config: str | None, *, system: bool) -> str:
    from gemlet import paths

    # If there is no file yet, one that is created later is read then.
    if config or not system:
        return paths.config_path(config) or paths.user_config_path()
    return paths.SYSTEM_CONFIG  # a system's daemon is not its administrator's own: it does not read ~/.config


def native_server(policy: str | None) -> Server:
    """The native server. Raises GemletError if it is not built."""
    try:
        from gemlet._native import Server as NativeServer
    except ImportError as error:
        raise NotBuilt(error) from None
    server: Server = NativeServer(policy=policy or "fair")
    return server


def metrics_text() -> Callable[[Status], str] | None:
    """Renders the metrics; None without prometheus-client."""
    try:
        from gemlet.monitor import metrics
    except ImportError:
        return None
    return metrics.render


def _configured(file: ConfigurationFile) -> Configuration:
    with contextlib.suppress(ConfigError):  # the daemon says what is wrong with it when it starts
        file.load()
    return file.current


def _start_metrics(latest: Callable[[], Status | None], port: int | None) -> tuple[MetricsServer, Thread] | None:
    if port is None:
        return None
    try:
        from gemlet.monitor import metrics_server

        return metrics_server.serve(latest, port=port)
    except ImportError:
        raise GemletError("prometheus-client is not installed", hint="pip install 'gemlet[metrics]'") from None
    except OSError as error:
        raise GemletError(
            f"port {port} cannot be used: {error.strerror}", hint="choose another --metrics-port"
        ) from None


@contextlib.contextmanager
def serving_metrics(
    latest: Callable[[], Status | None], port: int | None, *, configured: int | None = None
) -> Iterator[None]:
    """Serves the metrics on the loopback interface at ``port``, or else at the ``configured`` one, if either is given.

    Raises GemletError if that cannot be. A configured port that cannot be used is a warning: the user's daemon and the
    one of the simulated machine may read the same file, and programs must run.
    """
    try:
        started = _start_metrics(latest, port or configured)
    except GemletError as error:
        if port is not None:
            raise
        logging.getLogger("gemlet").warning("metrics: %s (%s)", error.message, error.hint)
        started = None
    if started is None:
        yield
        return
    server, thread = started
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


PAGE_SECONDS = 1.0  # for the page to end with the daemon


@contextlib.contextmanager
def serving_page(endpoint: Endpoint, listen: str | None) -> Iterator[None]:
    """Runs `gemlet web` beside the daemon, which only shows, and leaves its link in the daemon's directory.

    It is a process of its own, so that nothing a browser sends reaches the one that decides; root's runs as nobody.
    """
    if listen is None:
        yield
        return
    import subprocess
    import sys

    from gemlet.cli.web import TOKEN
    from gemlet.monitor.web.server import new_token

    token = new_token()
    # Who is not root, as the user of the unit for systemd, cannot become nobody.
    nobody = 65534 if endpoint.kind == "system" and os.geteuid() == 0 else None
    try:
        _write_private(endpoint.web_link, f"http://{listen}/#{token}\n")
        page = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "gemlet",
                "--socket",
                str(endpoint.directory),
                "web",
                "--listen",
                listen,
                "--until-eof",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {TOKEN: token},
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else [],
        )
    except OSError as error:  # as with the metrics: programs must run
        endpoint.web_link.unlink(missing_ok=True)
        whom = "nobody" if nobody else "this user"
        logging.getLogger("gemlet").warning("web: the page cannot be started as %s: %s", whom, error)
        yield
        return
    with page:
        try:
            yield
        finally:
            endpoint.web_link.unlink(missing_ok=True)
            page.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                page.wait(PAGE_SECONDS)
            page.kill()  # another process of its user may have stopped it


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
