"""`gemlet run` precedes every program people start, so what it imports is a budget.

Times are processor time, and the best of several, because the machine that runs this has other things to do.
"""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = {"rich", "textual", "msgspec", "psutil", "pynvml", "asyncio", "subprocess", "shutil", "tempfile", "ssl"}
GEMLET_MILLISECONDS = 20.0  # of gemlet's own modules, by themselves; measured: 4
TRIES = 5


PATH = ["gemlet.cli.main", "gemlet.cli.run"]
OWN_TIME = """
import importlib, sys, time
for module in sys.argv[1].split(","):  # of others
    importlib.import_module(module)
begin = time.process_time()
import gemlet.cli.main, gemlet.cli.run
print((time.process_time() - begin) * 1000)
"""


def imported() -> list[str]:
    """All that the path of `gemlet run` imports."""
    code = f"import sys; before = set(sys.modules); import {', '.join(PATH)}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def own_milliseconds(others: list[str]) -> float:
    """What gemlet's own modules take when those of others are there."""
    command = [sys.executable, "-c", OWN_TIME, ",".join(others)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_nothing_heavy_is_imported():
    modules = imported()
    assert set(PATH) <= set(modules)
    assert not FORBIDDEN & set(modules)


def test_own_modules_stay_within_the_budget():
    others = [module for module in imported() if not module.startswith("gemlet")]
    times = [own_milliseconds(others) for _ in range(TRIES)]
    assert min(times) < GEMLET_MILLISECONDS, times
