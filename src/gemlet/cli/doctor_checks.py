"""The checks of `gemlet doctor`. Each is one function that returns one or more verdicts and never raises."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gemlet
from gemlet import paths
from gemlet.cli import environment
from gemlet.daemon import address
from gemlet.daemon.connection import Connection, no_daemon
from gemlet.elf_file import ElfFile, newest_glibc
from gemlet.errors import ConfigError, DeviceError, GemletError
from gemlet.typed_command import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Verdict = Literal["ok", "warn", "fail"]
CHECK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    name: str
    verdict: Verdict
    text: str
    hint: str | None = None


def run_checks(socket: str | None) -> list[Check]:
    """All checks, in the order in which things depend on each other. ``socket`` as given with --socket."""
    found: list[Check] = []
    for check in (versions, container, driver, mps, libcuda, hook, native, simulated_machine, runtime_directory):
        found += _guarded(check)
    for of_socket in (configuration, daemons):
        found += _guarded(of_socket, socket)
    return found


def _guarded(check: Callable[..., Iterator[Check]], *given: str | None) -> list[Check]:
    name = getattr(check, "__name__", "check").replace("_", " ")
    try:
        return list(check(*given))
    except GemletError as error:
        return [Check(name, "fail", str(error), error.hint)]
    except (OSError, subprocess.SubprocessError) as error:
        return [Check(name, "fail", f"cannot be checked: {error}")]


def versions() -> Iterator[Check]:
    python = platform.python_version()
    yield Check("versions", "ok", f"gemlet {gemlet.__version__}, Python {python}, Linux {platform.release()}")
    libc, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    needed = newest_glibc(ElfFile(paths.hook_path()).required)
    if libc != "glibc" or numbers < needed:
        hint = f"the hook needs glibc {'.'.join(map(str, needed))} or newer; there is no CUDA for musl"
        yield Check("libc", "fail", f"{libc or 'not glibc'} {version}", hint)
    else:
        yield Check("libc", "ok", f"glibc {version}; programs need {'.'.join(map(str, needed))}")


def container() -> Iterator[Check]:
    signs = {"/.dockerenv": "Docker", "/run/.containerenv": "Podman"}
    inside = next((name for sign, name in signs.items() if Path(sign).exists()), None)
    if inside is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        inside = "Kubernetes"
    if inside is None:
        yield Check("container", "ok", "not in one")
        return
    hint = "run the daemon on the host and mount its directory: `gemlet env --docker` prints how"
    yield Check("container", "warn", f"in {inside}: the driver's pids are the host's", hint)


def driver() -> Iterator[Check]:
    from gemlet.devices import nvml

    try:
        with nvml.session() as session:
            version = session.driver_version() or "unknown"
            devices = session.devices()
            yield Check("driver", "ok", f"version {version}, {len(devices)} devices")
            for device in devices:
                yield _device(session, device)
    except DeviceError as error:
        yield Check("driver", "warn", f"no GPU: {error.message}", error.hint)
        return


def _device(session: object, device: object) -> Check:
    from gemlet.devices.nvml import NvmlDevice, Session

    assert isinstance(session, Session)
    assert isinstance(device, NvmlDevice)
    name = f"device {device.index}"
    handle = session.nvml.nvmlDeviceGetHandleByIndex(device.index)
    mode = session.ask_if_supported(name, session.nvml.nvmlDeviceGetMigMode, handle)
    if mode and mode[0]:
        return Check(name, "warn", f"{device.name}, in MIG mode", "gemlet shares whole GPUs: nvidia-smi -mig 0")
    return Check(name, "ok", f"{device.name}, MIG off")


def mps() -> Iterator[Check]:
    from gemlet.devices.mps import DEFAULT_PIPE_DIRECTORY, MpsError, control_of, find_program

    places = [DEFAULT_PIPE_DIRECTORY, *filter(None, [environment.own_pipe_directory(os.environ)])]
    for place in dict.fromkeys(places):
        if control := control_of(place):
            text = f"a control daemon that is not gemlet's: pid {control.pid} of uid {control.uid} in {place}"
            hint = "programs use it without gemlet's doing; `gemlet mps start` is refused while it runs"
            yield Check("MPS", "warn", text, hint)
    try:
        program = find_program(os.environ.get("GEMLET_MPS_CONTROL"), None)
    except MpsError as error:
        yield Check("MPS program", "warn", f"{error.message}: --sm needs it", error.hint)
        return
    yield Check("MPS program", "ok", program)


def _mps_of(status: dict[str, Any]) -> Check | None:
    mps = status.get("mps")
    if not mps or mps["state"] == "off":
        return None
    name = f"MPS ({status['daemon']['kind']})"
    start = command("mps", "start", simulated=status["simulated"])
    stop = command("mps", "stop", "--force", simulated=status["simulated"])
    if mps["state"] == "failed":
        hint = f"{start}; its log is in {mps['log_directory']}"
        return Check(name, "fail", "the control daemon ended unexpectedly", hint)
    if mps["state"] == "stopping":
        hint = f"`{stop}` ends what it waits for"
        return Check(name, "warn", f"control daemon {mps['pid']} is being stopped", hint)
    if mps["problem"]:
        return Check(name, "warn", mps["problem"], stop)
    bad = [server for server in mps["servers"] if server["status"] == "FAULT"]
    if bad:
        hint = "wait until all its clients have ended: a fault of one ends them all, then the server works again"
        return Check(name, "warn", f"server {bad[0]['pid']} has a fault", hint)
    clients = sum(len(server["clients"]) for server in mps["servers"])
    return Check(name, "ok", f"control daemon {mps['pid']}, {clients} programs side by side")


def libcuda() -> Iterator[Check]:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        yield Check("libcuda", "warn", f"{error}", "install the NVIDIA driver, or use --simulate, which needs none")
        return
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    yield Check("libcuda", "ok", f"CUDA {version.value // 1000}.{version.value % 1000 // 10}")


def hook() -> Iterator[Check]:
    yield Check("hook", "ok", paths.hook_path())
    try:
        ctypes.CDLL("libcuda.so.1")
        machine = None
    except OSError:
        paths.sim_dir()  # raises: then there is nothing to check it on
        machine = "/nonexistent"
    membership = environment.Membership(group="doctor", socket="/nonexistent", machine=machine)
    variables = environment.for_program(membership, os.environ) | {"GEMLET_QUIET": "1"}
    script = Path(__file__).with_name("hook_check.py")
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(script)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Check("hook works", "fail", f"a program with the hook fails: {last}", "reinstall gemlet")
        return
    routes = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    missed = [route for route, library in routes.items() if paths.HOOK_LIBRARY not in Path(library).name]
    on = " (on the simulated driver)" if machine else ""
    if missed:
        hint = "report the version of this driver: gemlet does not know it"
        yield Check("hook works", "fail", f"launches are not intercepted through {', '.join(missed)}{on}", hint)
    else:
        yield Check("hook works", "ok", f"launches are intercepted through {' and '.join(routes)}{on}")


def native() -> Iterator[Check]:
    try:
        import gemlet._native
    except ImportError as error:
        yield Check("native module", "fail", str(error), "reinstall gemlet, or build it with `make native`")
        return
    yield Check("native module", "ok", str(gemlet._native.__file__))


def simulated_machine() -> Iterator[Check]:
    yield Check("simulated machine", "ok", paths.sim_dir())


def runtime_directory() -> Iterator[Check]:
    directory = paths.runtime_dir()
    if len(paths.socket_path(directory)) > 100:  # sun_path holds 108 bytes, and the simulated daemon adds a folder
        yield Check("runtime directory", "fail", f"{directory} is too long for a socket", "set GEMLET_RUNTIME_DIR")
        return
    yield Check("runtime directory", "ok", directory)


def configuration(socket: str | None) -> Iterator[Check]:
    """The file that the user's next daemon begins with, and does not start if anything in it is wrong."""
    from gemlet.config import files

    try:
        path = paths.config_path()
        if path is not None:
            files.load(path)
    except ConfigError as error:
        # Where the system's daemon runs, nobody starts one of their own, and that file need not be theirs to read.
        others = any(place.kind != "user" and place.api.exists() for place in address.candidates(socket))
        for each in (error, *error.others):
            yield Check("configuration", "warn" if others else "fail", str(each), each.hint)
        return
    yield Check("configuration", "ok", path or "none: groups are made by `gemlet run`")


def _problems_of(status: dict[str, Any]) -> Iterator[Check]:
    """What a daemon says of itself; one of another version may not know all of it."""
    daemon = status["daemon"]
    name = f"daemon ({daemon['kind']})"
    if error := daemon.get("config_error"):
        hint = "mend the file: until then the limits of the last good one hold"
        yield Check(name, "fail", f"its configuration is not applied: {error}", hint)
    if error := daemon.get("state_error"):
        hint = "make its directory writable, with room on the disk"
        yield Check(name, "warn", f"a daemon started after a kill would not know its groups: {error}", hint)


def daemons(socket: str | None) -> Iterator[Check]:
    running = 0
    endpoints = address.candidates(socket)
    with contextlib.suppress(GemletError):  # what is wrong with that directory is a check of its own
        endpoints.append(address.simulated())
    for endpoint in endpoints:
        if endpoint.unusable is not None or not endpoint.api.exists():
            continue
        name = f"daemon ({endpoint.kind})"
        try:
            with Connection(endpoint) as connection:
                status = connection.call("status")
        except GemletError as error:
            hint = "start a new one with `gemlet run`: the old one died and left its socket"
            yield Check(name, "warn", error.message, hint)
            continue
        running += 1
        daemon = status["daemon"]
        text = f"pid {daemon['pid']}, {_count(status['devices'], 'device')}, {_count(status['groups'], 'group')}"
        if daemon["version"] == gemlet.__version__:
            yield Check(name, "ok", text)
        else:
            yield Check(name, "warn", f"{text}, version {daemon['version']}", "restart it: `gemlet stop`")
        yield from _problems_of(status)
        if found := _mps_of(status):
            yield found
        if not endpoint.clients.is_socket():
            yield Check(name, "fail", f"{endpoint.clients} is missing", "restart it: `gemlet stop`")
    if not running:
        yield Check("daemon", "ok", "none runs", _how_to_start())


def _how_to_start() -> str | None:
    try:
        return no_daemon(address.user()).hint
    except GemletError:
        return None


def _count(things: list[Any], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
