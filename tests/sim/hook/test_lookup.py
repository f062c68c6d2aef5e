"""Every way to look a driver function up ends at the hook, and nothing else about the lookup changes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.sim.hook.conftest import ROOT, Built

if TYPE_CHECKING:
    from pathlib import Path


Lines = Callable[..., list[str]]
HOOKED = [
    "cuInit",
    "cuMemAlloc_v2",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuMemcpyHtoD_v2_ptds",
    "cuGetProcAddress_v2",
]
PLAIN = ["cuDriverGetVersion", "cuCtxGetCurrent", "cuGetExportTable"]


def hooks_def() -> tuple[list[str], list[str]]:
    text = (ROOT / "native/hook/lookup/hooks.def").read_text()
    return re.findall(r"^HOOK\((\w+)\)$", text, re.MULTILINE), re.findall(r"^NVML\((\w+)\)$", text, re.MULTILINE)


def exported(library: Path) -> set[str]:
    output = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in output.stdout.splitlines()}


def test_exports_are_the_hooks_and_nothing_else(built: Built) -> None:
    driver, nvml = hooks_def()
    assert len(driver) == len(set(driver)) > 100
    own = {name for name in exported(built.hook) if not name.startswith("gemlet_test_")}
    declared = re.findall(r"^\w[\w ]* (gemlet_\w+)\(", (ROOT / "native/hook/swap/declare.h").read_text(), re.MULTILINE)
    assert len(declared) == 4
    assert own == {*driver, *nvml, *declared, "dlsym", "dlvsym", "dlmopen", "dlopen", "__asan_default_options"}


def test_the_library_needs_nothing_but_libc(built: Built) -> None:
    output = subprocess.run(["readelf", "-d", str(built.hook)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", output))
    assert all(name.startswith(("libc.so", "ld-linux", "libpthread.so", "libdl.so")) for name in needed), needed


# POSIX's list, without what can have no place in the hook. fcntl is one for locks alone.
CANCELLATION_POINTS = """
accept accept4 clock_nanosleep close connect creat epoll_wait fopen fputs fprintf fread fwrite fsync
getaddrinfo mq_receive msync nanosleep open open64 openat pause perror poll ppoll pread printf pselect
pthread_cond_timedwait pthread_cond_wait pthread_join pthread_testcancel puts pwrite read readv recv recvfrom
recvmsg select sem_wait send sendmsg sendto sigwait sleep system usleep wait waitpid write writev
"""


def test_no_function_of_the_hook_is_a_cancellation_point() -> None:
    """Nothing would unwind: a thread that ends in one would keep the hook's locks and count as waiting for ever."""
    objects = list((ROOT / "build/native/native/hook").rglob("*.o"))
    assert len(objects) > 40
    wanted = set()
    for file in objects:
        output = subprocess.run(["nm", "-uC", str(file)], capture_output=True, text=True, check=True).stdout
        wanted |= {re.sub(r"^__(\w+)_chk$", r"\1", line.split(maxsplit=1)[-1]) for line in output.splitlines()}
    assert "syscall" in wanted
    assert not wanted & set(CANCELLATION_POINTS.split())
    assert not [name for name in wanted if re.match(r"std::(condition_variable|basic_\w*stream|filebuf)", name)]


def test_dlsym_and_dlvsym(lines: Lines) -> None:
    got = lines("probe", "dlsym", *HOOKED, *PLAIN, driver="versioned")
    expected = [f"{n} hook hook {n}" for n in HOOKED] + [f"{n} driver driver {n}" for n in PLAIN]
    assert got == expected


def test_global_scope(lines: Lines) -> None:
    got = lines("probe", "global", "cuInit", "cuLaunchKernel", "cuNoSuchFunction")
    assert got == ["cuInit hook hook", "cuLaunchKernel hook hook", "cuNoSuchFunction null null"]


def test_without_the_hook_the_probe_sees_the_driver(lines: Lines) -> None:
    assert lines("probe", "dlsym", "cuInit", preload=(), driver="versioned") == ["cuInit driver driver cuInit"]


GET_CASES = [
    ("cuMemAlloc", 2000, 0, "0 0 hook cuMemAlloc"),
    ("cuMemAlloc", 3020, 0, "0 0 hook cuMemAlloc_v2"),
    ("cuMemAlloc", 13000, 1, "0 0 hook cuMemAlloc_v2"),
    ("cuLaunchKernel", 3020, 0, "0 2 null -"),  # too old: stays null
    ("cuLaunchKernel", 7000, 1, "0 0 hook cuLaunchKernel"),
    ("cuLaunchKernel", 7000, 2, "0 0 hook cuLaunchKernel_ptsz"),
    ("cuMemcpyHtoD", 12000, 2, "0 0 hook cuMemcpyHtoD_v2_ptds"),
    ("cuCtxCreate", 11000, 0, "0 0 hook cuCtxCreate_v2"),
    ("cuCtxCreate", 12000, 0, "0 0 hook cuCtxCreate_v3"),
    ("cuCtxCreate", 13000, 0, "0 0 hook cuCtxCreate_v4"),
    ("cuMemPrefetchAsync", 12000, 0, "0 0 hook cuMemPrefetchAsync"),  # not the _v2 with other arguments
    ("cuMemPrefetchAsync", 12020, 0, "0 0 hook cuMemPrefetchAsync_v2"),
    ("cuGetProcAddress", 11030, 0, "0 0 hook cuGetProcAddress"),
    ("cuGetProcAddress", 12000, 0, "0 0 hook cuGetProcAddress_v2"),
    ("cuGetExportTable", 13000, 0, "0 0 driver cuGetExportTable"),
    ("cuDriverGetVersion", 13000, 0, "0 0 driver cuDriverGetVersion"),
    ("cuNoSuchFunction", 13000, 0, "0 1 null -"),
    ("cuMemAlloc", 99999, 0, "1 -1 untouched -"),
]


@pytest.mark.parametrize("abi", [1, 2])
def test_get_proc_address(lines: Lines, abi: int) -> None:
    arguments = [str(part) for name, version, flags, _ in GET_CASES for part in (name, version, flags)]
    got = lines("probe", "get", str(abi), *arguments)
    for line, (name, version, flags, answer) in zip(got, GET_CASES, strict=True):
        expected = answer if abi == 2 else re.sub(r"^(\d) \d", r"\1 -1", answer)
        assert line == f"{name} {expected}", (version, flags)


def test_an_old_driver_lacks_what_it_lacks(lines: Lines) -> None:
    got = lines("probe", "dlsym", "cuLaunchKernel", "cuLaunchKernelEx", "cuGetProcAddress_v2", driver="old")
    assert got == [
        "cuLaunchKernel hook null cuLaunchKernel",
        "cuLaunchKernelEx null null -",
        "cuGetProcAddress_v2 null null -",
    ]
    got = lines("probe", "get", "1", "cuCtxCreate", "13000", "0", "cuLaunchKernelEx", "13000", "0", driver="old")
    assert got == ["cuCtxCreate 0 -1 hook cuCtxCreate_v3", "cuLaunchKernelEx 0 -1 null -"]


def test_a_driver_with_addresses_of_its_own_is_matched_by_name(built: Built) -> None:
    cases = [
        "cuLaunchKernel 12000 1",
        "cuLaunchKernel 12000 2",
        "cuCtxCreate 11000 0",
        "cuCtxCreate 12000 0",
        "cuCtxCreate 13000 0",
    ]
    done = built.run("probe", "get", "2", *" ".join(cases).split(), driver="private")
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4",
    ]  # fmt: skip
    assert done.stdout.count(" hook ") == len(cases)
    assert done.stderr.count("\n") == 1
    assert "by unknown addresses" in done.stderr


def test_a_linked_program_is_hooked_before_main(lines: Lines) -> None:
    assert lines("linked") == ["early=0 allocs=1", "launches=1 used=2097152"]


def test_a_driver_loaded_late(lines: Lines) -> None:
    assert lines("probe", "late") == ["before null explained", "before null explained", "after hook"]


@pytest.mark.parametrize("driver", ["plain", "old"])
def test_errno_and_dlerror_are_those_of_the_real_lookup(lines: Lines, driver: str) -> None:
    absent = "hook dlerror=none" if driver == "plain" else "null dlerror=its own"
    assert lines("probe", "errors", driver=driver) == [
        "found hook errno=77 dlerror=none",
        "missing null dlerror=its own",
        f"absent {absent}",
        "cleared dlerror=none",
    ]


def test_threads_race_for_the_first_lookup(lines: Lines) -> None:
    for _ in range(20):
        assert lines("probe", "threads") == ["hooked 16 of 16"]


def test_fork_and_exec(lines: Lines) -> None:
    got = lines("probe", "fork", env={"GEMLET_TEST_LIMIT": str(1 << 30)})
    assert got == [f"parent {4 << 20}", "child hook 0", "exec hook", f"status 0 held {4 << 20}"]


@pytest.mark.parametrize("order", list(itertools.permutations(["hook", "first", "second"])), ids="-".join)
def test_chained_interposers_keep_their_order(lines: Lines, order: tuple[str, ...]) -> None:
    expected = ">".join([name for name in order if name != "hook"] + ["base"])
    assert lines("chain", preload=order) == [expected]


def test_another_interposer_of_dlsym_sees_every_lookup(built: Built) -> None:
    done = built.run("probe", "dlsym", "cuLaunchKernel", preload=("hook", "spy"))
    assert done.stdout.split() == ["cuLaunchKernel", "hook", "null", "cuLaunchKernel"]
    assert int(re.findall(r"spy saw (\d+)", done.stderr)[0]) >= 2  # the program's lookup and our own


@pytest.mark.parametrize("order", [("hook", "spy"), ("spy", "hook")], ids="-".join)
def test_another_interposer_of_dlsym_does_not_break_a_chain(built: Built, order: tuple[str, ...]) -> None:
    assert built.run("chain", preload=(*order, "first", "second")).stdout.strip() == "first>second>base"


@pytest.mark.parametrize("abi", ["ctypes", "true"])
def test_programs_without_cuda_notice_nothing(built: Built, abi: str) -> None:
    script = "import ctypes, ssl, random; random.seed(3); print(random.random(), ctypes.CDLL(None).getpid() > 0)"
    command = [sys.executable, "-c", script] if abi == "ctypes" else ["/bin/sh", "-c", "exit 3"]
    plain = built.run(*command, preload=())
    hooked = built.run(*command, env={"GEMLET_TEST_LIMIT": "1"})
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitized_programs_start(lines: Lines, sanitizer: str) -> None:
    late = {"ASAN_OPTIONS": "verify_asan_link_order=0"}
    assert lines(f"sanitized_{sanitizer}", env=late) == ["base"]


def test_a_lookup_costs_programs_without_cuda_next_to_nothing(built: Built) -> None:
    lookups = 1000

    def cost(preload: tuple[str, ...]) -> float:
        return built.instructions("probe", "cost", str(lookups), function="look_up", preload=preload) / lookups

    assert cost(("hook",)) - cost(()) < 150  # 69 when this was written, beside 933 of the lookup
