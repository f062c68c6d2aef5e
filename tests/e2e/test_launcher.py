"""What `gemlet run` adds to programs besides the preloaded library."""

from __future__ import annotations

import sys
import time

import pytest

from gemlet import paths
from tests.e2e.programs import ALLOCATE_EACH

SHOW = "import os; print(os.environ.get('GEMLET_TORCH'), os.environ.get('PYTHONPATH', '').split(':')[0])"
OOM = 2


def shown(gemlet, *options):
    done = gemlet("run", "-q", "--simulate", *options, "--", sys.executable, "-c", SHOW)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_hook_for_pytorch_where_memory_can_move(gemlet):
    assert shown(gemlet)[0] == "None"
    assert shown(gemlet, "--resident", "10GiB") == ["dead", paths.injected_dir()]
    assert shown(gemlet, "--resident", "10GiB", "--no-torch-hook")[0] == "None"
    assert shown(gemlet, "--empty-cache") == ["empty-cache", paths.injected_dir()]


def started(gemlet, *options):
    """A daemon that answers."""
    daemon = gemlet.start("daemon", "--simulate", *options)
    give_up = time.monotonic() + 60
    while gemlet("status", "--simulate").returncode != 0:
        assert time.monotonic() < give_up, "no daemon"
    return daemon


def test_the_hook_where_a_device_has_a_capacity(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text('[[devices]]\nindex = 0\ncapacity = "8GiB"\n')
    assert shown(gemlet)[0] == "None"  # starts a daemon that knows of no capacity
    gemlet("stop", "--simulate")
    daemon = started(gemlet, "--config", str(config))
    assert shown(gemlet, "--group", "g")[0] == "dead"
    daemon.terminate()
    assert daemon.wait(timeout=60) == 0


def test_two_wishes_that_exclude_each_other(gemlet):
    done = gemlet("run", "--simulate", "--empty-cache", "--no-torch-hook", "--", "true")
    assert done.returncode == 2
    assert "leave one out" in done.stderr


def allocate(gemlet, *options):
    done = gemlet("run", "-q", "--simulate", *options, "--", sys.executable, "-c", ALLOCATE_EACH, "100000", "60000")
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()], done.stderr


def test_managed_memory_is_refused_beyond_what_is_free(gemlet):
    (first, second), words = allocate(gemlet, "--managed")
    assert first[:2] == [0, 1]
    assert second[0] == OOM
    assert second[2] == first[2] < 60_000
    assert "of managed memory are asked for" in words
    assert "--managed=force" in words


def test_managed_memory_that_is_forced(gemlet):
    allocated, words = allocate(gemlet, "--managed=force")
    assert [line[:2] for line in allocated] == [[0, 1], [0, 1]]
    assert words == ""


def test_managed_memory_counts_against_the_groups_limit(gemlet):
    allocated, words = allocate(gemlet, "--managed=force", "--memory", "110GiB")
    assert [line[0] for line in allocated] == [0, OOM]
    assert "--memory" in words


NOT_SUPPORTED = 801
CONTEXT = 600  # MiB at most, and measured a little later


@pytest.mark.parametrize(
    ("function", "fails", "answer"),
    [
        ("cuMemAllocManaged", OOM, OOM),
        ("cuMemPrefetchAsync_v2", OOM, OOM),
        ("cuMemPrefetchAsync_v2", NOT_SUPPORTED, 0),  # a driver that has only the first version
        ("cuStreamCreate", OOM, OOM),
    ],
)
def test_a_driver_that_fails_takes_no_managed_memory(gemlet, function, fails, answer):
    run = ("run", "-q", "--simulate", "--managed", "--memory", "60GiB", "--", sys.executable, "-c", ALLOCATE_EACH)
    whole = gemlet(*run, "50000").stdout.split()
    faulty = gemlet(*run, "50000", "50000", GEMLET_SIM_FAULTS=f"{function}:1={fails}").stdout.splitlines()
    first, second = (line.split() for line in faulty)
    assert first[0] == str(answer)
    # What failed is given back: to the device, and to the group's limit.
    assert second[0] == ("0" if answer else str(OOM))
    free = int((second if answer else first)[2])
    assert abs(free - int(whole[2])) <= CONTEXT


@pytest.mark.parametrize("value", ["python3", "sometimes"])
def test_managed_knows_two_values(gemlet, value):
    done = gemlet("run", "--simulate", "--managed", value, "--", "true")
    assert done.returncode == 2
    assert "force" in done.stderr


def test_a_hook_that_cannot_work_is_in_the_daemons_log(gemlet, tmp_path):
    daemon = started(gemlet)
    note = (
        f"import os, sys; sys.path.insert(0, {paths.injected_dir()!r}); "
        "import _gemlet_torch_hook; _gemlet_torch_hook.tell(_gemlet_torch_hook.Off('the reason'))"
    )
    done = gemlet("run", "-q", "--simulate", "--", sys.executable, "-c", note)
    assert (done.returncode, done.stderr) == (0, "")
    daemon.terminate()
    _, log = daemon.communicate(timeout=60)
    assert "torch hook is off: the reason" in log
