"""What everybody says who may know why pods do not work: for the message of a test that failed."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.cluster import Refused
from tests.cluster.processes import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.cluster import Cluster

LINES = 60  # of a log


@contextmanager
def witnessed(cluster: Cluster, *names: str) -> Iterator[None]:
    """Adds to `Failed` what the pods ``names``, gemlet's daemon and the kernel say of them."""
    try:
        yield
    except Failed as failure:
        raise Failed(f"{failure}\n\n{account(cluster, names)}") from failure


def account(cluster: Cluster, names: Sequence[str]) -> str:
    """The pods' logs, the daemon's status, its reasons for each group and its log, and where programs wait."""
    found = {f"pod {name}": _end(cluster.log(name)) for name in names}
    try:
        status = cluster.gemlet.status(cluster.node)
        found["status"] = json.dumps(status)
        groups = {group["name"] for device in status["devices"] for group in device["groups"] if group["clients"]}
        for group in sorted(groups):
            found[f"explain {group}"] = cluster.gemlet.ask(cluster.node, "explain", group)
    except (Refused, StopIteration, ValueError, subprocess.TimeoutExpired) as error:
        found["status"] = f"none: {error}"
    found["daemon"] = _end(cluster.gemlet.log("daemon", cluster.node))
    for process in Path("/proc").glob("[0-9]*"):
        if _read(process / "comm").strip() == "probe":
            found[f"process {process.name}"] = _waits(process)
    return "\n\n".join(f"--- {what}\n{said}" for what, said in found.items())


def _waits(process: Path) -> str:
    """Where each thread of a process waits, in the kernel and, if there is gdb, in the program."""
    threads = [
        f"{thread.name} wchan={_read(thread / 'wchan')} syscall={_read(thread / 'syscall').strip()}"
        for thread in (process / "task").glob("*")
    ]
    command = ["gdb", "-p", process.name, "-batch", "-ex", "thread apply all backtrace"]
    if shutil.which("gdb"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        threads.append(done.stdout)
    return "\n".join(threads)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:  # it may have ended
        return str(error)


def _end(log: str) -> str:
    return "\n".join(log.splitlines()[-LINES:])
