"""Programs under a clock of their own, as faketime makes one: the hook keeps to the machine's, which the daemon has."""

from __future__ import annotations

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


@pytest.mark.parametrize("first", [True, False], ids=["before the hook", "after it"])
def test_the_hook_reads_the_machines_clock(served: Served, machine: Machine, first: bool) -> None:
    served.server.set_group("a", max=0.5, memory=1 << 30)
    clock = str(compiled_text("gcc", "-shared", "-fPIC", "-O2", text=CLOCK))
    both = [clock, paths.hook_path()] if first else [paths.hook_path(), clock]
    assert machine.run("a", "launch-one", LD_PRELOAD=":".join(both)) == "0\n"
