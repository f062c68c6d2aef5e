"""Green contexts: gemlet.devices.green on the simulated driver, which has the driver's rules but not its effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine

OPEN = """
        from gemlet.devices.green import SmGroups
        from gemlet.errors import DeviceError
        open_device()
        groups = SmGroups(0)
"""


def test_the_sms_are_split_once_into_the_smallest_groups(machine: SimulatedMachine) -> None:
    machine.run(
        OPEN
        + """
        assert (groups.sms, groups.count, groups.group_sms) == (132, 16, 8)
        assert [groups.stream(0, n).sms for n in (1, 4, 15)] == [8, 32, 120]
        assert groups.stream(15, 1).sms == 12, "SMs that fill no group belong to the last one"
        assert groups.stream(0, 16).sms == 132
        for first, count in ((0, 0), (-1, 2), (15, 2)):
            try:
                groups.stream(first, count)
            except DeviceError as error:
                assert "only 16" in str(error)
            else:
                raise AssertionError((first, count))
        """
    )


def test_work_runs_on_such_a_stream_and_it_can_be_destroyed(machine: SimulatedMachine) -> None:
    machine.run(
        OPEN
        + """
        stream = groups.stream(4, 4)
        begin = time.monotonic()
        check(launch(kernel("spin"), 20_000_000, stream=cu.CUstream(stream.handle)))
        check(cu.cuStreamSynchronize(cu.CUstream(stream.handle)))
        assert time.monotonic() - begin >= 0.02
        groups.destroy(stream)
        try:
            groups.destroy(stream)
        except DeviceError as error:
            assert "cuStreamDestroy_v2: CUDA_ERROR" in str(error)
        else:
            raise AssertionError
        """
    )


def test_groups_of_two_splits_are_not_joined(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device()
        kind = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = check(cu.cuDeviceGetDevResource(0, kind))
        one, *_ = check(cu.cuDevSmResourceSplitByCount(2, whole, 0, 30))
        other, *_ = check(cu.cuDevSmResourceSplitByCount(2, whole, 0, 30))
        assert [each.sm.smCount for each in one] == [32, 32]
        assert code(cu.cuDevResourceGenerateDesc([one[0], other[1]], 2)) == 915
        check(cu.cuDevResourceGenerateDesc([one[0], one[1]], 2))
    """)


def test_memory_and_events_outlive_it(machine: SimulatedMachine) -> None:
    """As on an H200 (bench.green_memory)."""
    machine.run("""
        open_device()
        primary = check(cu.cuCtxGetCurrent())
        whole = check(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        groups, *_ = check(cu.cuDevSmResourceSplitByCount(1, whole, 0, 8))
        description = check(cu.cuDevResourceGenerateDesc(groups, 1))
        green = check(cu.cuGreenCtxCreate(description, 0, cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
        context = check(cu.cuCtxFromGreenCtx(green))
        stream = check(cu.cuGreenCtxStreamCreate(green, cu.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
        assert int(check(cu.cuStreamGetCtx(stream))) == int(context) != int(primary)
        check(cu.cuCtxSetCurrent(context))
        memory, event = check(cu.cuMemAlloc(1 << 20)), check(cu.cuEventCreate(0))
        owner = check(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT, memory))
        assert int(owner) == int(primary)
        check(cu.cuEventRecord(event, stream))
        check(cu.cuStreamSynchronize(stream))
        check(cu.cuCtxSetCurrent(primary))
        check(cu.cuGreenCtxDestroy(green))
        check(cu.cuEventQuery(event))
        check(cu.cuMemsetD8(memory, 1, 1 << 20))
        check(cu.cuMemFree(memory))
    """)
