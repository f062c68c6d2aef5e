"""Memory: accounted exactly across processes, real bytes, and a fault where nothing is mapped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine


CONTEXT = 524_288_000


def test_accounting_by_granule_and_slab(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device()
        def free(): return check(cu.cuMemGetInfo())[0]
        start = free(); total = check(cu.cuMemGetInfo())[1]
        assert total - start == 524_288_000                     # the context
        big = check(cu.cuMemAlloc(3 * MIB)); assert start - free() == 4 * MIB
        small = [check(cu.cuMemAlloc(1000)) for _ in range(100)]; assert start - free() == 6 * MIB
        for p in small: check(cu.cuMemFree(p))
        assert start - free() == 4 * MIB
        check(cu.cuMemFree(big)); assert free() == start
    """)


def test_managed_memory_is_on_the_device_once_it_was_brought_there(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device()
        def free(): return check(cu.cuMemGetInfo())[0]
        def bring(p, n): return code(cu.cuMemPrefetchAsync(p, n, there, 0, 0))
        there = cu.CUmemLocation(); there.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; there.id = 0
        start = free()
        managed = check(cu.cuMemAllocManaged(3 * MIB, 1)); assert free() == start
        assert bring(managed, 3 * MIB) == 0; assert start - free() == 4 * MIB
        assert bring(managed, 3 * MIB) == 0; assert start - free() == 4 * MIB
        copy_to(managed, b"x" * 100); assert copy_from(managed, 100) == b"x" * 100
        check(cu.cuMemFree(managed)); assert free() == start
        device = check(cu.cuMemAlloc(3 * MIB)); assert bring(device, 3 * MIB) == 1       # CUDA_ERROR_INVALID_VALUE
        huge = check(cu.cuMemAllocManaged(start, 1)); before = free()
        assert bring(huge, start) == 0; assert free() == before                  # no room: it stays on the host
    """)


def test_the_card_is_bigger_than_this_host_and_ends(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); free, total = check(cu.cuMemGetInfo())
        huge = check(cu.cuMemAlloc(free // (2 * MIB) * 2 * MIB - 64 * MIB))
        assert code(cu.cuMemAlloc(65 * MIB)) == 2               # CUDA_ERROR_OUT_OF_MEMORY
        check(cu.cuMemAlloc(64 * MIB))
    """)


def test_capacity_holds_across_processes_and_death_returns_it(machine: SimulatedMachine) -> None:
    holder = machine.start("""
        open_device(); check(cu.cuMemAlloc(100 << 30)); print("ready", flush=True); time.sleep(60)
    """)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    assert machine.truth("gemletSimMemory", holder.pid) == (100 << 30) + CONTEXT
    probe = "open_device(); print(code(cu.cuMemAlloc(50 << 30)), check(cu.cuMemGetInfo())[0])"
    assert machine.run(probe).split()[0] == "2"
    holder.kill()
    holder.wait()  # not yet: communicate() would only close the pipes
    holder.communicate()
    code, free = machine.run(probe).split()
    assert code == "0"
    assert int(free) == 150_121_545_728 - CONTEXT - (50 << 30)
    assert machine.truth("gemletSimMemory", holder.pid) == 0


def test_copies_sets_and_kernels_move_real_bytes(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); n = 3 * MIB + 17
        data = bytes(os.urandom(n)); a, b = check(cu.cuMemAlloc(n)), check(cu.cuMemAlloc(n))
        copy_to(a, data); check(cu.cuMemcpyDtoD(b, a, n)); assert copy_from(b, n) == data
        check(cu.cuMemsetD8(a, 0x5A, n)); assert copy_from(a, n) == b"Z" * n
        check(cu.cuMemsetD32(a, 0x01020304, 4)); assert copy_from(a, 8) == bytes([4, 3, 2, 1] * 2)
        check(launch(kernel("fill"), int(a), n, 0xAB)); assert copy_from(a, n) == b"\\xab" * n
        copy_to(a, (41).to_bytes(8, "little")); check(launch(kernel("add"), int(a), 1, 1))
        assert copy_from(a, 8)[0] == 42
    """)


def test_effects_keep_stream_order(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); fill, add, spin = kernel("fill"), kernel("add"), kernel("spin")
        a = check(cu.cuMemAlloc(8)); one, two = check(cu.cuStreamCreate(1)), check(cu.cuStreamCreate(1))
        done = check(cu.cuEventCreate(2))
        for round in range(200):
            check(launch(fill, int(a), 8, 0, stream=one)); check(launch(add, int(a), 1, round, stream=one))
            check(cu.cuEventRecord(done, one)); check(cu.cuStreamWaitEvent(two, done, 0))
            check(launch(add, int(a), 1, 7, stream=two)); check(cu.cuStreamSynchronize(two))
            assert int.from_bytes(copy_from(a, 8), "little") == round + 7
    """)


VIRTUAL = """
    open_device(); size = 4 * MIB
    prop = cu.CUmemAllocationProp(); prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; prop.location.id = 0
    access = cu.CUmemAccessDesc(); access.location = prop.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    base = check(cu.cuMemAddressReserve(size, 0, 0, 0))
    def swap_in():
        handle = check(cu.cuMemCreate(size, prop, 0)); check(cu.cuMemMap(base, size, 0, handle, 0))
        check(cu.cuMemSetAccess(base, size, [access], 1)); check(cu.cuMemRelease(handle))
    def swap_out(): check(cu.cuMemUnmap(base, size))
"""


def test_virtual_memory_swaps_without_changing_address(machine: SimulatedMachine) -> None:
    machine.run(
        VIRTUAL
        + """
    start = check(cu.cuMemGetInfo())[0]
    for round in range(20):
        swap_in(); assert start - check(cu.cuMemGetInfo())[0] == size
        check(launch(kernel("fill"), int(base), size, round)); kept = copy_from(base, size)
        assert kept == bytes([round]) * size
        swap_out(); assert check(cu.cuMemGetInfo())[0] == start
        swap_in(); copy_to(base, kept); assert copy_from(base, size) == kept; swap_out()
    check(cu.cuMemAddressFree(base, size))
    """
    )


def test_virtual_memory_rules(machine: SimulatedMachine) -> None:
    machine.run(
        VIRTUAL
        + """
    swap_in()
    assert code(cu.cuMemUnmap(base, size // 2)) == 1            # only what was mapped, whole
    assert code(cu.cuMemAddressFree(base, size)) == 1           # still mapped
    assert code(cu.cuMemCreate(MIB, prop, 0)) == 1              # granularity
    swap_out()
    assert code(cu.cuMemSetAccess(base, size, [access], 1)) == 1
    """
    )


def test_touching_swapped_out_memory_crashes_with_a_message(machine: SimulatedMachine) -> None:
    for touch in (
        "launch(kernel('fill'), int(base), size, 1); cu.cuCtxSynchronize()",
        "copy_from(base, 16)",
        "ctypes.memset(int(base), 0, 1)",
    ):
        process = machine.start(VIRTUAL + f"    swap_in(); swap_out()\n    {touch}\n")
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGSEGV
        if "ctypes" not in touch:
            assert "no memory is mapped at" in err


def test_pools_reuse_and_release(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); stream = check(cu.cuStreamCreate(1)); pool = check(cu.cuDeviceGetMemPool(0))
        fill = kernel("fill")
        def attribute(name):
            which = getattr(cu.CUmemPool_attribute, "CU_MEMPOOL_ATTR_" + name)
            return int(check(cu.cuMemPoolGetAttribute(pool, which)))
        for _ in range(50):
            p = check(cu.cuMemAllocAsync(10 * MIB, stream))
            check(launch(fill, int(p), 10 * MIB, 1, stream=stream)); check(cu.cuMemFreeAsync(p, stream))
        assert attribute("RESERVED_MEM_CURRENT") == 32 * MIB    # its own stream may reuse at once
        check(cu.cuStreamSynchronize(stream))
        assert attribute("USED_MEM_CURRENT") == 0 and attribute("RESERVED_MEM_CURRENT") == 0  # threshold 0
        check(cu.cuMemPoolSetAttribute(pool, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                      cu.cuuint64_t(1 << 40)))
        p = check(cu.cuMemAllocAsync(MIB, stream)); check(cu.cuMemFreeAsync(p, stream))
        check(cu.cuStreamSynchronize(stream))
        assert attribute("RESERVED_MEM_CURRENT") == 32 * MIB
        check(cu.cuMemPoolTrimTo(pool, 0)); assert attribute("RESERVED_MEM_CURRENT") == 0
    """)


def test_ipc_handle_shows_the_same_bytes(machine: SimulatedMachine) -> None:
    exporter = machine.start("""
        open_device(); p = check(cu.cuMemAlloc(4096)); q = check(cu.cuMemAlloc(4096))
        check(launch(kernel("fill"), int(q), 4096, 9)); check(cu.cuCtxSynchronize())
        handle = check(cu.cuIpcGetMemHandle(q)); print(ctypes.string_at(handle.getPtr(), 64).hex(), flush=True)
        sys.stdin.readline(); assert copy_from(q, 1) == b"\\x05"
    """)
    assert exporter.stdout is not None
    ticket = exporter.stdout.readline().strip()
    machine.run(
        """
        open_device(); handle = cu.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
        p = check(cu.cuIpcOpenMemHandle(handle, 1)); assert copy_from(p, 4096) == b"\\x09" * 4096
        check(cu.cuMemsetD8(p, 5, 4096)); check(cu.cuIpcCloseMemHandle(p))
        """,
        ticket,
    )
    _, err = exporter.communicate("\n", timeout=60)
    assert exporter.returncode == 0, err


@pytest.mark.parametrize("left", [0, 1])
def test_a_program_without_descriptors_takes_nobody_for_dead(machine: SimulatedMachine, left: int) -> None:
    program = machine.start(
        """
        import resource
        open_device()
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        print("ready", flush=True)
        sys.stdin.readline()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + int(sys.argv[1]), most))
        print(check(cu.cuMemGetInfo())[0])
        """,
        left,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    neighbour = machine.start("""
        open_device()
        check(cu.cuMemAlloc(64 * MIB))
        print(check(cu.cuMemGetInfo())[0], flush=True)
        sys.stdin.readline()
        print(truth("gemletSimMemory", os.getpid()) // MIB)
    """)
    assert neighbour.stdout is not None
    free = neighbour.stdout.readline()
    assert program.communicate("\n", timeout=60)[0] == free
    assert neighbour.communicate("\n", timeout=60)[0] == "564\n"


def test_an_address_that_a_stream_reuses_before_its_free_is_reached(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); spin, fill = kernel("spin"), kernel("fill")
        stream = check(cu.cuStreamCreate(1))
        check(launch(spin, 300_000_000, stream=stream))
        first = check(cu.cuMemAllocAsync(4 * MIB, stream))
        check(cu.cuMemFreeAsync(first, stream))
        second = check(cu.cuMemAllocAsync(4 * MIB, stream))
        assert int(second) == int(first)
        check(cu.cuStreamSynchronize(stream))
        check(launch(fill, second, 4 * MIB, 7, stream=stream))
        check(cu.cuMemFreeAsync(second, stream))
        check(cu.cuStreamSynchronize(stream))
    """)
