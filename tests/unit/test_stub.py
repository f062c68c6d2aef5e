"""`_native.pyi` names what the native module has, no less and no more: mypy's stubtest compares them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# nanobind's classes have a metaclass of their own, and its functions are objects of theirs: a stub cannot say that.
ALLOWED = r"""
gemlet\._native\.(Arbiter|GeminiPredictor|Residency|Server)
gemlet\._native\.decision_cost
"""


def test_the_stub_is_true(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED)
    command = [sys.executable, "-m", "mypy.stubtest", "gemlet._native", "--ignore-disjoint-bases"]
    command += ["--allowlist", str(allowed), "--mypy-config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
