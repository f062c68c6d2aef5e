"""A daemon that a command starts outlives it, and serves commands that have nothing to do with its limits."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

from gemlet.daemon import autostart
from tests.waiting import eventually

SHOWS = """
import json, os, resource, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
signals = {name: int(status[name], 16) for name in ("SigBlk", "SigIgn")}
limits = {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE",
    "RLIMIT_NOFILE", "RLIMIT_STACK")}
with open(sys.argv[1] + ".new", "w") as out:
    json.dump(signals | limits, out)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
# The address space has room for what a sanitizer reserves. Python itself ignores two of the signals, and its
# children do not.
STARTS = """
import os, pathlib, resource, signal, sys
from gemlet.daemon import autostart
for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM, signal.SIGRTMIN + 3):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2, signal.SIGTERM))
for name, soft in (("CPU", 60), ("AS", 1 << 46), ("FSIZE", 1 << 20), ("NOFILE", 32), ("STACK", 1 << 20)):
    kind = getattr(resource, "RLIMIT_" + name)
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
command = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]]
autostart._spawn_detached(command, environment=dict(os.environ), log=pathlib.Path(sys.argv[2] + ".log"))
"""
IGNORED_BY_PYTHON = 1 << 12 | 1 << 24  # SIGPIPE, SIGXFSZ


def test_limits_and_signals_of_the_command_are_its_own(tmp_path):
    shown = tmp_path / "shown"
    subprocess.run([sys.executable, "-c", STARTS, SHOWS, str(shown)], check=True)
    eventually(shown.exists)
    found = json.loads(shown.read_text())
    assert found["SigBlk"] == 0
    ours = sum(1 << number - 1 for number in signal.valid_signals())  # all but 32 and 33, which are the C library's
    assert found["SigIgn"] & ours & ~IGNORED_BY_PYTHON == 0
    for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
        soft, hard = found[name]
        assert soft == hard == resource.getrlimit(getattr(resource, name))[1], name
    assert found["RLIMIT_STACK"][0] == 8 << 20


def test_a_hard_limit_that_cannot_be_raised_is_kept_to(tmp_path):
    """As without a privilege: what may not go up stays, and the rest goes up all the same."""
    shown = tmp_path / "shown"
    starts = (
        "import resource\n"
        "set_any = resource.setrlimit\n"
        "def setrlimit(kind, limits):\n"
        "    hard = resource.getrlimit(kind)[1]\n"
        "    if hard != -1 and not 0 <= limits[1] <= hard:\n"
        "        raise ValueError('not allowed to raise maximum limit')\n"
        "    set_any(kind, limits)\n"
        "resource.setrlimit = setrlimit\n"
        "set_any(resource.RLIMIT_CPU, (60, 90))\n" + STARTS
    )
    subprocess.run([sys.executable, "-c", starts, SHOWS, str(shown)], check=True)
    eventually(shown.exists)
    found = json.loads(shown.read_text())
    assert found["RLIMIT_CPU"] == [90, 90]
    assert found["RLIMIT_FSIZE"][0] == found["RLIMIT_FSIZE"][1]


def test_what_starts_it_keeps_its_own(tmp_path):
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)}
    autostart._spawn_detached([sys.executable, "-c", ""], environment=dict(os.environ), log=tmp_path / "log")
    assert {kind: resource.getrlimit(kind) for kind in before} == before
