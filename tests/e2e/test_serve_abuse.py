"""A short run of the abuse of bench/serve_abuse.py: what is counted, not what is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KEPT_BYTES = 32 << 20  # less than any one of the large requests has; allocators keep some of it
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_good_clients_are_answered_and_the_server_gives_memory_back(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench.serve_abuse", "--seconds", "1", "--rounds", "1", "-o", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    assert set(found["rounds"].values()) == {1}
    assert found["beside"]["requests"] > 0
    assert found["verdicts"]["every good request answered"], found
    assert found["resident"]["after"] < found["resident"]["before"] + KEPT_BYTES, found["resident"]
