"""Modelled time: kernels, copies, events, streams, queue depth, and the division among processes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compiled import compiled

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine


def test_events_stamp_device_time(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
        start, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
        check(launch(spin, 500_000_000, stream=stream))        # so that the start event waits on the device
        check(cu.cuEventRecord(start, stream))
        for _ in range(50): check(launch(spin, 100_000, stream=stream))
        check(cu.cuEventRecord(end, stream))
        assert code(cu.cuEventElapsedTime(start, end)) == 600   # CUDA_ERROR_NOT_READY
        check(cu.cuEventSynchronize(end))
        elapsed = check(cu.cuEventElapsedTime(start, end))
        assert abs(elapsed - 5.0) < 0.001, elapsed
    """)


def test_waiting_does_not_end_before_the_work_does(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); spin = kernel("spin"); late = []
        for _ in range(50):
            before = time.monotonic_ns()
            check(launch(spin, 2_000_000)); check(cu.cuCtxSynchronize())
            late.append(time.monotonic_ns() - before - 2_000_000)
        assert min(late) >= 0
    """)


@pytest.mark.alone
def test_waiting_ends_as_soon_as_the_work_does(machine: SimulatedMachine) -> None:
    out = machine.run("""
        open_device(); spin = kernel("spin"); late = []
        for _ in range(50):
            before = time.monotonic_ns()
            check(launch(spin, 2_000_000)); check(cu.cuCtxSynchronize())
            late.append(time.monotonic_ns() - before - 2_000_000)
        print(sorted(late)[len(late) // 2])
    """)
    assert int(out) < 500_000  # nanoseconds; about 60 us on a quiet machine


def test_waiting_costs_no_cpu(machine: SimulatedMachine) -> None:
    out = machine.run("""
        open_device(); spin = kernel("spin")
        check(launch(spin, 500_000_000))
        before = time.process_time(); check(cu.cuCtxSynchronize()); print(time.process_time() - before)
    """)
    assert float(out) < 0.1


def test_a_launch_blocks_when_the_queue_is_full(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
        begin = time.monotonic()
        for _ in range(1122): check(launch(spin, 1_000_000, stream=stream))
        assert time.monotonic() - begin > 0.095                 # had to wait for about a hundred kernels
        other = check(cu.cuStreamCreate(1))
        for _ in range(1022): check(launch(spin, 1_000_000_000_000, stream=other))
        os._exit(0)                                             # did not wait for one: each takes a quarter of an hour
    """)


def test_copies_take_the_time_of_the_bus(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); size = 64 * MIB
        device = check(cu.cuMemAlloc(size)); host = check(cu.cuMemHostAlloc(size, 0))
        stream = check(cu.cuStreamCreate(1))
        start, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
        check(launch(kernel("spin"), 500_000_000, stream=stream))
        check(cu.cuEventRecord(start, stream)); check(cu.cuMemcpyHtoDAsync(device, host, size, stream))
        check(cu.cuEventRecord(end, stream))
        check(cu.cuEventSynchronize(end))
        rate = size / (check(cu.cuEventElapsedTime(start, end)) * 1e6)
        assert 53 < rate < 56, rate
    """)


def test_a_copy_overlaps_the_kernels_of_another_stream(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); size = 64 * MIB; spin = kernel("spin")
        device = check(cu.cuMemAlloc(size)); host = check(cu.cuMemHostAlloc(size, 0))
        a, b = check(cu.cuStreamCreate(1)), check(cu.cuStreamCreate(1))
        start, kernels, copied = (check(cu.cuEventCreate(0)) for _ in range(3))
        check(launch(spin, 500_000_000, stream=a)); check(cu.cuEventRecord(start, a))
        check(cu.cuStreamWaitEvent(b, start, 0))
        check(launch(spin, 3_000_000, stream=a)); check(cu.cuEventRecord(kernels, a))
        check(cu.cuMemcpyHtoDAsync(device, host, size, b)); check(cu.cuEventRecord(copied, b))
        check(cu.cuCtxSynchronize())
        assert abs(check(cu.cuEventElapsedTime(start, kernels)) - 3.0) < 0.01
        assert check(cu.cuEventElapsedTime(start, copied)) < 2.0
    """)


def test_random_histories_of_a_device() -> None:
    here = Path(__file__).parent
    engine = here.parents[2] / "native" / "sim"
    sources = (here / "schedule_check.cpp", engine / "schedule.cpp")
    options = ("-std=c++20", "-O1", "-Wall", "-Wextra", f"-I{engine}", f"-I{engine.parent}")
    program = compiled("c++", *options, sources=sources, headers=tuple(sorted(engine.glob("*.hpp"))))
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


CONTENDER = """
    open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
    print("ready", flush=True); sys.stdin.readline()
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        check(launch(spin, 50_000, stream=stream))
    print(truth("gemletSimDeviceTime", os.getpid()), flush=True)
    os._exit(0)
"""


@pytest.mark.alone
def test_two_processes_share_equally_and_pay_for_switches(machine: SimulatedMachine) -> None:
    seconds = 1.5
    both = [machine.start(CONTENDER, seconds) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    used = [int(process.communicate(timeout=60)[0]) / 1e9 for process in both]
    assert abs(used[0] - used[1]) < 0.1 * seconds, used
    # 2.09 of every 2.245 ms; the margin is for a busy machine, where the two do not start and end together.
    assert 0.85 * seconds < sum(used) < 0.96 * seconds, used


def test_a_killed_process_leaves_the_device_at_once(machine: SimulatedMachine) -> None:
    queue_a_second = """
        open_device(); spin = kernel("spin")
        for _ in range(1000): check(launch(spin, 10_000_000))
        print(os.getpid(), flush=True); time.sleep(60)
    """
    hog = machine.start(queue_a_second)
    assert hog.stdout is not None
    pid = int(hog.stdout.readline())
    time.sleep(0.05)
    hog.kill()
    hog.communicate()
    out = machine.run("""
        open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
        start, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
        check(launch(spin, 20_000_000, stream=stream)); check(cu.cuEventRecord(start, stream))
        check(launch(spin, 20_000_000, stream=stream)); check(cu.cuEventRecord(end, stream))
        check(cu.cuEventSynchronize(end)); print(check(cu.cuEventElapsedTime(start, end)))
    """)
    assert float(out) == pytest.approx(20, rel=0.001)  # milliseconds on the device: nobody shares
    used = machine.truth("gemletSimDeviceTime", pid)
    assert 0.04e9 < used < 5e9


def test_a_stopped_process_keeps_nobody_waiting(machine: SimulatedMachine) -> None:
    """Stopped at arbitrary instructions: there is no lock it could hold."""
    import os
    import signal

    busy = machine.start("""
        open_device(); spin = kernel("spin"); print("ready", flush=True)
        while True: check(launch(spin, 3_200))
    """)
    assert busy.stdout is not None
    busy.stdout.readline()
    other = machine.start("""
        open_device(); spin = kernel("spin"); print("ready", flush=True)
        for _ in sys.stdin:
            for _ in range(5): check(launch(spin, 3_200)); check(cu.cuCtxSynchronize())
            print("done", flush=True)
    """)
    assert other.stdout is not None
    assert other.stdin is not None
    other.stdout.readline()
    for _ in range(20):
        os.kill(busy.pid, signal.SIGSTOP)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "done\n"  # while the other one is stopped, wherever it is
        os.kill(busy.pid, signal.SIGCONT)
        time.sleep(0.01)
    other.communicate(timeout=120)
    busy.kill()
    busy.communicate()
