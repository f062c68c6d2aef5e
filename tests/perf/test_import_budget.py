"""`gemlet run` precedes every program people start, so what it imports is a budget.

Times are the best of several, because the machine that runs this has other things to do.
"""

from __future__ import annotations

import re
import subprocess
import sys

FORBIDDEN = {"rich", "textual", "msgspec", "psutil", "pynvml", "asyncio", "subprocess", "shutil", "tempfile", "ssl"}
GEMLET_MILLISECONDS = 20.0  # of gemlet's own modules, by themselves; measured: 4
TRIES = 5


def imported() -> dict[str, float]:
    """Milliseconds each module took by itself, on the path of `gemlet run`."""
    command = [sys.executable, "-X", "importtime", "-c", "import gemlet.cli.main, gemlet.cli.run"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", report, re.MULTILINE)
    return {module: int(microseconds) / 1000 for microseconds, module in lines}


def test_nothing_heavy_is_imported():
    modules = imported()
    assert "gemlet.cli.run" in modules
    assert not FORBIDDEN & modules.keys()


def test_own_modules_stay_within_the_budget():
    times = [sum(ms for module, ms in imported().items() if module.startswith("gemlet")) for _ in range(TRIES)]
    assert min(times) < GEMLET_MILLISECONDS, times
