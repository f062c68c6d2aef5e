"""What gemlet costs before a program's first CUDA call, and how soon a changed configuration holds; on an idle machine.

    python -m bench.start [--out DIR] [--rounds 10]

Needs no GPU: the daemon and the programs run on a simulated machine of their own. Each value is the least of several,
because it is gemlet's cost that is looked for, not the machine's disturbance. tests/perf counts what must not grow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Report
from gemlet import paths
from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

GEMLET = [sys.executable, "-m", "gemlet.cli.main"]
OWN_IMPORTS = """
import sys, time
import click, json, socket, struct, tomllib
begin = time.perf_counter()
import gemlet.cli.main, gemlet.cli.run
print((time.perf_counter() - begin) * 1000)
"""
NATIVE = "[groups.team]\nmin = {}\n"


def least(rounds: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(rounds))


def milliseconds(command: list[str], env: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - begin)


def starts(report: Report, env: dict[str, str], rounds: int) -> None:
    true = ["/bin/true"]
    run = [*GEMLET, "run", "-q", "--simulate", "--", *true]
    subprocess.run(run, env=env, check=True)  # starts the daemon
    python = least(rounds, lambda: milliseconds([sys.executable, "-c", "pass"], env))
    report.add(
        "`gemlet run` of a program that does nothing: ms", least(rounds, lambda: milliseconds(run, env)), "<= 150"
    )
    report.add("a Python that does nothing, for comparison: ms", python)

    def own() -> float:
        return float(
            subprocess.run([sys.executable, "-c", OWN_IMPORTS], env=env, capture_output=True, check=True).stdout
        )

    report.add("gemlet's own modules on the way of `gemlet run`: ms", least(rounds, own), "<= 20")
    hooked = env | {"LD_PRELOAD": paths.hook_path(), "GEMLET_GROUP": "none"}
    added = least(rounds, lambda: milliseconds(true, hooked)) - least(rounds, lambda: milliseconds(true, env))
    report.add("the hook, to a program without CUDA: ms", added, "<= 5")
    torch = env | {"PYTHONPATH": paths.injected_dir(), "GEMLET_TORCH": "dead"}
    added = least(rounds, lambda: milliseconds([sys.executable, "-c", "pass"], torch)) - python
    report.add("the hook for PyTorch, to a Python without it: ms", added, "<= 5")


def reload(report: Report, env: dict[str, str], folder: Path, rounds: int) -> None:
    """From the end of the write to the first status that shows it."""
    config = folder / "gemlet.toml"
    config.write_text(NATIVE.format(0.1))
    command = [*GEMLET, "daemon", "--simulate", "--config", str(config)]
    daemon = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        while not (folder / "sim" / "api.sock").is_socket():
            time.sleep(0.01)
        took = []
        with Connection(Endpoint(folder / "sim", "simulated")) as connection:
            for number in range(rounds):
                share = round(0.2 + 0.01 * number, 2)
                config.write_text(NATIVE.format(share))
                begin = time.perf_counter()
                while connection.call("status")["groups"][0]["min"] != share:
                    time.sleep(0.001)
                took.append(1000 * (time.perf_counter() - begin))
    finally:
        daemon.terminate()
        daemon.wait()
    report.add("a changed configuration holds after: ms, median", sorted(took)[len(took) // 2], "<= 50")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    report = Report({"device": "none", "simulated": True}, args.out / "start.json" if args.out else None)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GEMLET_", "LD_"))}
    with tempfile.TemporaryDirectory(prefix="gemlet-start-") as directory:
        folder = Path(directory)
        env = kept | {"GEMLET_RUNTIME_DIR": directory, "XDG_CONFIG_HOME": str(folder / "config")}
        try:
            starts(report, env, args.rounds)
        finally:
            subprocess.run([*GEMLET, "stop", "--simulate"], env=env, check=False, stdout=subprocess.DEVNULL)
        reload(report, env, folder, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
