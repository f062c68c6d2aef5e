"""Clients of the simulated MPS: which programs are clients, what they may use, how they run beside each other and
beside others."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.sim.driver.mps_machine import deadline

if TYPE_CHECKING:
    import subprocess

    from tests.sim.driver.conftest import SimulatedMachine
    from tests.sim.driver.mps_machine import Mps

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SEEN = """
    open_device()
    A = cu.CUdevice_attribute
    count = check(cu.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    print(count, check(cu.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0)))
"""
WAITER = """
    open_device(); print("ready", flush=True); sys.stdin.readline()
"""


def ready(process: subprocess.Popen[str]) -> int:
    """Waits for the program's line "ready"; its pid."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", line + process.communicate()[1]
    return process.pid


def go(*processes: subprocess.Popen[str]) -> None:
    """Sends each the line it waits for."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def printed(*processes: subprocess.Popen[str]) -> list[list[float]]:
    """The numbers that each prints at its end."""
    ended = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), ended
    return [[float(word) for word in out.split()] for out, _ in ended]


def results(*processes: subprocess.Popen[str]) -> list[float]:
    """The number that each prints at its end."""
    return [number for (number,) in printed(*processes)]


def switches(machine: SimulatedMachine) -> int:
    return int(
        machine.run("""
            library = ctypes.CDLL("libcuda.so.1"); count = ctypes.c_ulonglong()
            assert library.gemletSimTotals(0, None, ctypes.byref(count)) == 0
            print(count.value)
        """)
    )


# --- who is a client ------------------------------------------------------------------------------------------------


def test_a_client_is_listed_until_it_dies(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    client = machine.start(WAITER, **mps.env)
    pid = ready(client)
    assert mps.clients() == [pid]
    server = mps.ask("get_server_list")
    assert int(server) == mps.daemon_pid()
    _, line = mps.ask("ps").splitlines()
    columns = line.split()
    assert (columns[0], columns[2], columns[4]) == (str(pid), server, str(pid))
    assert columns[3].startswith("GPU-")
    device, listed = mps.ask(f"get_device_client_list {server}").splitlines()
    assert device.startswith(f"Device {columns[3]}")
    assert listed == str(pid)
    client.kill()
    for _ in deadline(60):
        if not mps.clients():
            break


def test_nvml_tells_clients_from_others(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    client, other = machine.start(WAITER, **mps.env), machine.start(WAITER)
    pids = [ready(client), ready(other)]
    out = machine.run("""
        import json, pynvml
        pynvml.nvmlInit(); device = pynvml.nvmlDeviceGetHandleByIndex(0)
        lists = pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetMPSComputeRunningProcesses
        print(json.dumps([sorted(process.pid for process in each(device)) for each in lists]))
    """)
    assert json.loads(out) == [sorted(pids), [pids[0]]]


def test_without_a_living_daemon_of_this_machine_nobody_is_a_client(machine: SimulatedMachine, mps: Mps) -> None:
    limited = {SHARE: "25"}
    assert machine.run(SEEN, **limited) == "132 0\n"  # the default directory
    assert machine.run(SEEN, **limited, **mps.env) == "132 0\n"  # no such directory
    mps.start(GEMLET_SIM_DIR=str(machine.folder / "another"))
    assert machine.run(SEEN, **limited, **mps.env) == "132 0\n"  # it serves another machine
    mps.end()
    mps.start()
    assert machine.run(SEEN, **limited, **mps.env) == "33 1\n"
    os.kill(mps.daemon_pid(), signal.SIGKILL)
    for _ in deadline(60):
        if machine.run(SEEN, **limited, **mps.env) == "132 0\n":  # its files alone are no daemon
            break


def test_a_client_leaves_with_its_last_context(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    client = machine.start(
        "open_device(); check(cu.cuDevicePrimaryCtxRelease(0)); print('ready', flush=True); sys.stdin.readline()",
        **mps.env,
    )
    pid = ready(client)
    assert mps.clients() == [pid]  # connected
    for _ in deadline(60):
        if len(mps.ask("ps").splitlines()) == 1:  # ... but on no device
            break


# --- what it may use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "client", "seen"),
    [("100", "25", 33), ("100", "0.1", 1), ("50", "80", 66), ("50", None, 66), ("100", "nonsense", 132)],
)
def test_the_share_shows_as_a_count(
    machine: SimulatedMachine, mps: Mps, server: str, client: str | None, seen: int
) -> None:
    mps.start()
    mps.ask(f"set_default_active_thread_percentage {server}")
    env = mps.env | ({SHARE: client} if client is not None else {})
    assert machine.run(SEEN, **env) == f"{seen} 1\n"


def test_a_context_may_ask_for_less(machine: SimulatedMachine, mps: Mps) -> None:
    script = """
        check(cu.cuInit(0)); kind = cu.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
        def granted(count):
            wanted = cu.CUexecAffinityParam(); wanted.type = kind; wanted.param.smCount.val = count
            parameters = cu.CUctxCreateParams()
            parameters.execAffinityParams = [wanted]; parameters.numExecAffinityParams = 1
            made = cu.cuCtxCreate(parameters, 0, 0)
            if code(made): return code(made)
            return check(cu.cuCtxGetExecAffinity(kind)).param.smCount.val
        print(check(cu.cuDeviceGetExecAffinitySupport(kind, 0)), granted(20), granted(100))
    """
    assert machine.run(script).split() == ["0", "224", "224"]  # CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
    mps.start()
    assert machine.run(script, **mps.env, **{SHARE: "50"}).split() == ["1", "20", "66"]


def test_contexts_may_have_shares_of_their_own(machine: SimulatedMachine, mps: Mps) -> None:
    script = """
        check(cu.cuInit(0)); kind = cu.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "50"
        check(cu.cuCtxCreate(None, 0, 0)); print(check(cu.cuCtxGetExecAffinity(kind)).param.smCount.val)
    """
    mps.start()
    assert machine.run(script, **mps.env, **{SHARE: "25"}) == "33\n"
    each = {"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1"}
    assert machine.run(script, **mps.env, **each, **{SHARE: "25"}) == "66\n"


# --- how fast it is -------------------------------------------------------------------------------------------------
# Events carry modelled time, so where nothing depends on when programs start, numbers are exact.

ALONE = "open_device(); spin = kernel('spin'); print(timed(spin, 20_000_000, **WIDE), timed(spin, 20_000_000))"


def test_a_share_slows_wide_kernels_only(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    for percentage, slower in (("100", 1.0), ("25", 4.0), ("50", 2.0)):
        wide, narrow = map(float, machine.run(ALONE, **mps.env, **{SHARE: percentage}).split())
        assert wide == pytest.approx(20 * slower, rel=0.001)
        assert narrow == pytest.approx(20, rel=0.001)


def test_device_time_counts_the_part_that_is_used(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    out = machine.run(
        """
        open_device(); spin = kernel("spin"); check(launch(spin, 20_000_000, **WIDE)); check(cu.cuCtxSynchronize())
        print(truth("gemletSimDeviceTime", os.getpid()))
        """,
        **mps.env,
        **{SHARE: "25"},
    )
    assert int(out) == pytest.approx(20_000_000, rel=0.001)  # a quarter of the device for 80 ms


def test_effects_come_in_order_and_in_time(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    machine.run(
        """
        open_device(); fill, add, spin = kernel("fill"), kernel("add"), kernel("spin"); p = check(cu.cuMemAlloc(64))
        begin = time.monotonic()
        check(launch(fill, int(p), 64, 0)); check(launch(spin, 20_000_000, **WIDE)); check(launch(add, int(p), 8, 7))
        assert copy_from(p, 64) == (7).to_bytes(8, "little") * 8
        assert time.monotonic() - begin >= 0.08
        """,
        **mps.env,
        **{SHARE: "25"},
    )


# Fills the device's time from the line "go" on, for the given number of seconds; prints its device time in them.
CONTENDER = """
    open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
    print("ready", flush=True); sys.stdin.readline()
    begin = truth("gemletSimDeviceTime", os.getpid()); end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        check(launch(spin, 1_000_000, stream=stream, **WIDE))
    print((truth("gemletSimDeviceTime", os.getpid()) - begin) / 1e9, flush=True)
    os._exit(0)
"""
# Does a fixed amount of work in one queue: 250 ms of the whole device; prints when it began and ended, in seconds.
QUEUE = """
    open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1))
    print("ready", flush=True); sys.stdin.readline(); begin = time.monotonic()
    for _ in range(50): check(launch(spin, 5_000_000, stream=stream, **WIDE))
    check(cu.cuStreamSynchronize(stream)); print(begin, time.monotonic())
"""


@pytest.mark.alone
def test_two_clients_share_equally_and_lose_nothing(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    both = [machine.start(QUEUE, **mps.env) for _ in range(2)]
    for process in both:
        ready(process)
    go(*both)
    (begin, end), (other_begin, other_end) = printed(*both)
    # Whatever lies between their starts, if it is less than 0.25 s: each takes as long as the other, together 0.5 s.
    assert abs((end - begin) - (other_end - other_begin)) < 0.1
    assert 0.499 < max(end, other_end) - min(begin, other_begin) < 0.7
    assert switches(machine) == 0


def test_shares_that_fit_do_not_disturb_each_other(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    background = machine.start(CONTENDER, 600, **mps.env, **{SHARE: "75"})
    ready(background)
    go(background)
    wide, narrow = map(float, machine.run(ALONE, **mps.env, **{SHARE: "25"}).split())
    assert wide == pytest.approx(80, rel=0.001)
    assert narrow == pytest.approx(20, rel=0.01)  # one block more than fits: all are a little slower


def test_shares_that_do_not_fit_are_cut_in_proportion(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    background = machine.start(CONTENDER, 600, **mps.env)
    ready(background)
    go(background)
    wide = float(machine.run(ALONE, **mps.env, **{SHARE: "50"}).split()[0])
    # Asked for 1 and 0.5, so it gets a third of the device. Its rival may pause for a moment on a busy machine.
    assert 50 < wide <= 60.1


def test_a_client_below_normal_gets_what_is_left(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    background = machine.start(CONTENDER, 600, **mps.env, CUDA_MPS_CLIENT_PRIORITY="1")
    ready(background)
    go(background)
    wide = float(machine.run(ALONE, **mps.env).split()[0])
    assert wide == pytest.approx(20 / 0.99, rel=0.002)


@pytest.mark.alone
def test_others_take_turns_with_all_clients_together(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    seconds = 1.5
    plain = machine.start(CONTENDER, seconds)
    clients = [machine.start(CONTENDER, seconds, **mps.env) for _ in range(2)]
    for process in (plain, *clients):
        ready(process)
    go(plain, *clients)
    alone, first, second = results(plain, *clients)
    # 2.09 of every 2 x 2.245 ms for the one, as much for the two together; on a busy machine they begin and end apart.
    assert alone == pytest.approx(first + second, rel=0.3)
    assert first == pytest.approx(second, rel=0.3)
    assert alone + first + second > 0.7 * seconds
    assert switches(machine) > 100


def test_many_clients_never_use_more_than_the_device(machine: SimulatedMachine, mps: Mps) -> None:
    """Kernels of all widths, copies and pauses in three clients: what is modelled stays possible."""
    mps.start()
    script = """
        import random
        open_device(); spin = kernel("spin"); rng = random.Random(int(sys.argv[1])); before = 0.0
        stream = check(cu.cuStreamCreate(1)); first = check(cu.cuEventCreate(0)); check(cu.cuEventRecord(first, stream))
        print("ready", flush=True); sys.stdin.readline(); begin = time.monotonic()
        while time.monotonic() - begin < 0.7:
            for _ in range(rng.randrange(1, 30)):
                check(launch(spin, rng.randrange(3_200, 400_000), stream=stream, blocks=rng.randrange(1, 300),
                             threads=rng.choice([32, 256, 1024])))
            last = check(cu.cuEventCreate(0)); check(cu.cuEventRecord(last, stream))
            if rng.random() < 0.3: check(cu.cuStreamSynchronize(stream)); time.sleep(rng.random() * 0.003)
            check(cu.cuEventSynchronize(last))
            after = check(cu.cuEventElapsedTime(first, last)); assert after > before, (before, after); before = after
        print(truth("gemletSimDeviceTime", os.getpid()) / 1e9)
    """
    clients = [machine.start(script, seed, **mps.env) for seed in range(3)]
    for client in clients:
        ready(client)
    begin = time.monotonic()
    go(*clients)
    used = results(*clients)
    assert min(used) > 0
    assert sum(used) < time.monotonic() - begin  # in modelled time, which passes as fast


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_a_killed_client_leaves_no_trace(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    hog = machine.start(
        """
        open_device(); spin = kernel("spin"); p = check(cu.cuMemAlloc(64 * MIB))
        for _ in range(1000): check(launch(spin, 10_000_000, **WIDE))
        print("ready", flush=True); time.sleep(60)
        """,
        **mps.env,
    )
    pid = ready(hog)
    hog.kill()
    hog.wait(timeout=60)
    wide, _ = map(float, machine.run(ALONE, **mps.env).split())
    assert wide == pytest.approx(20, rel=0.001)
    assert float(machine.run(ALONE).split()[0]) == pytest.approx(20, rel=0.001)
    assert machine.truth("gemletSimMemory", pid) == 0
    assert 0 < machine.truth("gemletSimDeviceTime", pid) < 10_000_000_000
    for _ in deadline(60):
        if not mps.clients():
            break


def test_deaths_at_any_moment_tear_nothing(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    launcher = """
        open_device(); spin = kernel("spin"); stream = check(cu.cuStreamCreate(1)); print("ready", flush=True)
        while True: check(launch(spin, 20_000, stream=stream, **(WIDE if time.monotonic_ns() % 3 else {})))
    """
    survivor = machine.start(CONTENDER, 600, **mps.env)
    ready(survivor)
    go(survivor)
    for pause in (0.0, 0.001, 0.003, 0.01, 0.02, 0.0, 0.005, 0.03):
        doomed = [machine.start(launcher, **env) for env in (mps.env, {})]
        for process in doomed:
            ready(process)
        time.sleep(pause)
        for process in doomed:
            process.kill()
            process.wait(timeout=60)
    # One client is left beside this one. They ask for 1 and 0.5.
    wide, narrow = map(float, machine.run(ALONE, **mps.env, **{SHARE: "50"}).split())
    assert 50 < wide <= 60.1
    assert narrow == pytest.approx(20, rel=0.01)
    for _ in deadline(60):
        if mps.clients() == [survivor.pid]:
            break
    survivor.kill()
    survivor.wait(timeout=60)
    assert float(machine.run(ALONE, **mps.env).split()[0]) == pytest.approx(20, rel=0.001)


VICTIM = """
    open_device(); spin = kernel("spin")
    for _ in range(100): check(launch(spin, 100_000_000_000, **WIDE))  # hours, unless it is ended
    print("ready", flush=True)
    first = code(cu.cuCtxSynchronize())
    assert code(cu.cuMemAlloc(16)) == first
    print(first)
"""


def test_a_fatal_fault_ends_the_other_clients_too(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    victim = machine.start(VICTIM, **mps.env)
    ready(victim)
    culprit = machine.start(
        """
        open_device(); spin = kernel("spin"); check(launch(spin, 1000))
        assert code(launch(spin, 1000)) == 719; assert code(cu.cuCtxSynchronize()) == 719
        print("ready", flush=True); sys.stdin.readline()
        """,
        **mps.env,
        GEMLET_SIM_FAULTS="cuLaunchKernel:2=719!",
    )
    ready(culprit)
    assert results(victim) == [719]
    status = f"get_server_status {mps.daemon_pid()}"
    assert mps.ask(status) == "FAULT"
    newcomer = "print(code(cu.cuInit(0)))"
    assert machine.run(newcomer, **mps.env) == "807\n"  # CUDA_ERROR_MPS_SERVER_NOT_READY
    go(culprit)
    culprit.communicate(timeout=60)
    for _ in deadline(60):
        if mps.ask(status) == "ACTIVE":
            break
    assert machine.run(newcomer, **mps.env) == "0\n"


def test_an_illegal_address_is_such_a_fault(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    victim = machine.start(VICTIM, **mps.env)
    ready(victim)
    culprit = machine.start(
        "open_device(); fill = kernel('fill'); p = check(cu.cuMemAddressReserve(2 * MIB, 0, 0, 0))\n"
        "check(launch(fill, int(p), 16, 1)); cu.cuCtxSynchronize()",
        **mps.env,
    )
    assert culprit.wait(timeout=120) == -signal.SIGSEGV
    assert results(victim) == [700]


def test_a_fault_outside_mps_stays_where_it_is(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    client = machine.start(QUEUE, **mps.env)
    ready(client)
    machine.run(
        "open_device(); assert code(launch(kernel('spin'), 1000)) == 719",
        GEMLET_SIM_FAULTS="cuLaunchKernel:1=719!",
    )
    go(client)
    assert printed(client)  # it did all its work
    assert mps.ask(f"get_server_status {mps.daemon_pid()}") == "ACTIVE"


@pytest.mark.parametrize(
    ("command", "code"),
    [("terminate_client {server} {client}", 810), ("shutdown_server {server} -f", 806), ("quit -t 0", 806)],
)
def test_the_server_can_end_a_client(machine: SimulatedMachine, mps: Mps, command: str, code: int) -> None:
    mps.start()
    victim = machine.start(VICTIM, **mps.env)
    client = ready(victim)
    assert mps.ask(command.format(server=mps.daemon_pid(), client=client)) == ""
    assert results(victim) == [code]


def test_a_killed_daemon_ends_its_clients(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    victim = machine.start(VICTIM, **mps.env)
    ready(victim)
    os.kill(mps.daemon_pid(), signal.SIGKILL)
    assert results(victim) == [806]  # CUDA_ERROR_MPS_RPC_FAILURE


def test_quit_waits_for_the_clients(machine: SimulatedMachine, mps: Mps) -> None:
    mps.start()
    client = machine.start(WAITER, **mps.env)
    ready(client)
    assert mps.ask("quit") == ""
    assert mps.clients() == [client.pid]  # still there
    assert machine.run("print(code(cu.cuInit(0)))", **mps.env) == "807\n"
    go(client)
    client.communicate(timeout=60)
    for _ in deadline(60):
        if mps.control(commands="ps\n").returncode == 1:
            break
    assert not list(mps.pipe.iterdir())
