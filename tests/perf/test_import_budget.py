"""`gemlet run` precedes every program people start, so what it imports is a budget; so is the agent's on each node.

In modules, which are counted; bench/start.py measures the milliseconds, `make cluster-test` the agent's megabytes.
"""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = {"rich", "textual", "msgspec", "psutil", "pynvml", "asyncio", "subprocess", "shutil", "tempfile", "ssl"}
OWN = 25  # of gemlet's own modules; 19 when this was written
ALL = 130  # with those of click and of the standard library that Python has not imported at its start; then 102
PATH = ["gemlet.cli.main", "gemlet.cli.run"]

AGENT = ["gemlet.cli.main", "gemlet.cli.kube", "gemlet.daemon.logs", "gemlet.kube.agent"]
HEAVY = {"grpc", "aiohttp", "prometheus_client", "rich", "textual", "numpy", "yaml"}  # 2 to 17 MB each


def imported(path: list[str] = PATH) -> list[str]:
    """All that the path of `gemlet run`, or another, imports."""
    code = f"import sys; before = set(sys.modules); import {', '.join(path)}; print(*(set(sys.modules) - before))"
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


def test_the_agent_of_a_node_imports_nothing_heavy():
    modules = imported(AGENT)
    assert set(AGENT) <= set(modules)
    assert not HEAVY & set(modules)
