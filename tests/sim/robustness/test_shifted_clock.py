"""Programs under a clock of their own, by faketime or in a time namespace: the hook keeps to the machine's, which the
daemon has."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from tests.compiled import compiled_text

if TYPE_CHECKING:
    from tests.sim.robustness.hurt_machine import Machine, Served

# Ends the program if the hook asks it for the time.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* time) {
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libgemhook")) abort();
    return (int)syscall(SYS_clock_gettime, clock, time);
}
"""

# Makes a time namespace for the program's children, and leaves the program where it is.
FOR_CHILDREN = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void unshare_time(void) {
    static const char ahead[] = "monotonic 100000 0";
    if (unshare(0x80)) _exit(77); /* CLONE_NEWTIME */
    int file = open("/proc/self/timens_offsets", O_WRONLY);
    if (write(file, ahead, strlen(ahead)) < 0) _exit(78);
    close(file);
}
"""


@pytest.mark.parametrize("first", [True, False], ids=["before the hook", "after it"])
def test_the_hook_reads_the_machines_clock(served: Served, machine: Machine, first: bool) -> None:
    served.server.set_group("a", max=0.5, memory=1 << 30)
    clock = str(compiled_text("gcc", "-shared", "-fPIC", "-O2", text=CLOCK))
    both = [clock, paths.hook_path()] if first else [paths.hook_path(), clock]
    assert machine.run("a", "launch-one", LD_PRELOAD=":".join(both)) == "0\n"


@pytest.mark.parametrize("ahead", [100_000, -10])
def test_a_time_namespace_changes_nothing(served: Served, machine: Machine, ahead: int) -> None:
    """A program there waited for its first turn for ever, and its group was charged for the time."""
    namespace = ["--time", "--monotonic", str(ahead), "--fork", "--kill-child"]
    refused = subprocess.run(["unshare", *namespace, "true"], capture_output=True, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"no time namespaces: {refused.stderr}")
    served.server.set_group("a", max=0.5, memory=1 << 30)
    served.server.set_group("b", min=0.4, memory=1 << 30)
    run = [str(machine.program), "launch-one"]
    there = machine.start("a", *namespace, *run, command="unshare")
    here = machine.start("b", "launch-one")
    for each in (there, here, machine.start("b", *namespace, *run, command="unshare")):
        code, out, err = each.end()
        assert (code, out) == (0, "0\n"), err


def test_a_time_namespace_for_children_changes_nothing(served: Served, machine: Machine) -> None:
    """The kernel says what is added to the clock of a process's children, and the program waited for ever."""
    served.server.set_group("a", max=0.5, memory=1 << 30)
    unshare = str(compiled_text("gcc", "-shared", "-fPIC", "-O2", text=FOR_CHILDREN))
    code, out, err = machine.start("a", "launch-one", LD_PRELOAD=f"{paths.hook_path()}:{unshare}").end()
    if code == 77:
        pytest.skip("no time namespaces")
    assert (code, out) == (0, "0\n"), err
