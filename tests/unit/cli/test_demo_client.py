"""The demo's program says in one line what went wrong."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from gemlet import paths
from gemlet.errors import GemletError


def client(*arguments, **changes):
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, importlib.import_module("gemlet.cli.demo_client").__file__, *arguments]
    return subprocess.run(
        command, env=os.environ | path | changes, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def simulated(tmp_path):
    try:
        return {"LD_LIBRARY_PATH": paths.sim_dir(), "GEMLET_SIM_DIR": str(tmp_path)}
    except GemletError as error:
        pytest.skip(f"the simulated machine is not built: {error}")


def test_a_cuda_error_is_one_line_with_its_name(simulated):
    done = client("work", "200", "16384", "1", **simulated, GEMLET_SIM_FAULTS="cuMemAlloc_v2:*=2")
    assert (done.returncode, done.stderr) == (1, "error: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)\n")


@pytest.mark.parametrize("arguments", [[], ["work"], ["play", "1"], ["calibrate", "1", "2"]])
def test_wrong_arguments_are_answered_by_the_usage(arguments):
    done = client(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: ")


def test_a_word_for_a_number_is_one_line():
    done = client("calibrate", "fast")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
