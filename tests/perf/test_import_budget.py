"""`gemlet run` precedes every program people start, so what it imports is a budget.

In modules, which are counted; bench/start.py measures the milliseconds.
"""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = {"rich", "textual", "msgspec", "psutil", "pynvml", "asyncio", "subprocess", "shutil", "tempfile", "ssl"}
OWN = 24  # of gemlet's own modules; 19 when this was written
ALL = 130  # with those of click and of the standard library that Python has not imported at its start; then 102
PATH = ["gemlet.cli.main", "gemlet.cli.run"]


def imported() -> list[str]:
    """All that the path of `gemlet run` imports."""
    code = f"import sys; before = set(sys.modules); import {', '.join(PATH)}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def test_nothing_heavy_is_imported():
    modules = imported()
    assert set(PATH) <= set(modules)
    assert not FORBIDDEN & set(modules)


def test_modules_stay_within_the_budget():
    modules = imported()
    own = [name for name in modules if name.split(".")[0] == "gemlet"]
    assert len(own) <= OWN, own
    assert len(modules) <= ALL, modules
