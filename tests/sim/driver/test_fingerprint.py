"""The simulated machine's kernel of the hook computes what the hook's PTX computes; tests/gpu tests the PTX."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_kernel_of_the_hook(machine: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/fingerprint.py")],
        env=machine.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "same"


def test_its_ptx_assembles(tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if not ptxas:
        pytest.skip("ptxas is not installed")
    text = (ROOT / "native/hook/swap/fingerprint.cpp").read_text()
    source = tmp_path / "fingerprint.ptx"
    source.write_text(text.split('R"(')[1].split(')"')[0])
    for target in ("sm_80", "sm_90"):
        subprocess.run([ptxas, f"-arch={target}", str(source), "-o", str(tmp_path / "out")], check=True)
