"""Programs whose threads start CUDA at the same moment, through the real hook and the real server.

Under the sanitizers (`make sanitize`) this is what shows that none of them finds the hook half begun.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import scenarios, simulated

LIMIT = 240  # seconds
ROUNDS = 3


def test_threads_start_at_the_same_moment(tmp_path: Path) -> None:
    machine = simulated.machine(tmp_path, devices=2)
    program = [sys.executable, str(Path(__file__).parent / "starts.py"), "6"]
    with scenarios.Sharing(machine) as sharing:
        sharing.group("a", gang="auto")
        sharing.group("b", gang="on")
        for _ in range(ROUNDS):
            started = [
                subprocess.Popen([*program, *more], env=sharing.env(group), stdout=subprocess.PIPE, text=True)
                for group, more in (("a", []), ("b", ["fork"]), ("a", ["fork"]))
            ]
            for each in started:
                out, _ = each.communicate(timeout=LIMIT)
                assert (each.returncode, out) == (0, "ok\n")
