"""Capture and graphs: what may be captured, what breaks a capture, and that launching a graph does its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine


PRELUDE = """
    open_device(); spin, fill, add = kernel("spin"), kernel("fill"), kernel("add")
    mode = cu.CUstreamCaptureMode
    GLOBAL, RELAXED = mode.CU_STREAM_CAPTURE_MODE_GLOBAL, mode.CU_STREAM_CAPTURE_MODE_RELAXED
    stream = check(cu.cuStreamCreate(1)); blocking = check(cu.cuStreamCreate(0))
    def begin(s=stream, m=GLOBAL): check(cu.cuStreamBeginCapture(s, m))
    def end(s=stream): return code(cu.cuStreamEndCapture(s))
"""


def test_captured_work_runs_at_launch(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    p = check(cu.cuMemAlloc(64)); other = check(cu.cuStreamCreate(1))
    fork, join = check(cu.cuEventCreate(2)), check(cu.cuEventCreate(2))
    check(cu.cuMemsetD8(p, 0, 64))
    begin()
    check(launch(fill, int(p), 64, 0, stream=stream)); check(launch(add, int(p), 1, 5, stream=stream))
    check(cu.cuEventRecord(fork, stream)); check(cu.cuStreamWaitEvent(other, fork, 0))
    check(launch(add, int(p) + 8, 1, 6, stream=other)); check(cu.cuEventRecord(join, other))
    check(cu.cuStreamWaitEvent(stream, join, 0))
    check(launch(spin, 2_000_000, stream=stream))
    graph = check(cu.cuStreamEndCapture(stream)); assert copy_from(p, 1) == b"\\0"
    assert check(cu.cuGraphGetNodes(graph))[1] == 4
    executable = check(cu.cuGraphInstantiate(graph, 0))
    start, stop = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
    check(launch(spin, 300_000_000, stream=stream)); check(cu.cuEventRecord(start, stream))
    for _ in range(3): check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuEventRecord(stop, stream)); check(cu.cuStreamSynchronize(stream))
    words = copy_from(p, 16); assert (words[0], words[8]) == (5, 6)   # each launch fills with 0 first
    assert 6.0 < check(cu.cuEventElapsedTime(start, stop)) < 6.1
    """
    )


def test_what_breaks_a_capture(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    event = check(cu.cuEventCreate(0))
    begin(); assert code(cu.cuStreamSynchronize(stream)) == 900 and end() == 901
    begin(); assert code(cu.cuStreamQuery(stream)) == 900 and end() == 901
    begin(); assert code(cu.cuMemAlloc(100)) == 900 and end() == 901
    begin(); assert code(cu.cuEventQuery(event)) == 900 and end() == 901
    begin(); assert code(cu.cuCtxSynchronize()) == 900 and end() == 901
    begin(blocking); assert code(launch(spin, 1000)) == 906 and end(blocking) == 901      # the legacy stream
    begin(); check(launch(spin, 1000)); assert end() == 0   # ... a non-blocking one does not mind
    begin(); check(cu.cuEventRecord(event, stream)); assert code(cu.cuEventSynchronize(event)) == 907; end()
    begin(m=RELAXED); check(cu.cuMemAlloc(100)); assert end() == 0
    assert code(cu.cuStreamBeginCapture(0, GLOBAL)) == 900
    """
    )


def test_a_capture_forbids_other_threads_unless_they_relax(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    import threading
    results = []
    def other(relax):
        check(cu.cuCtxSetCurrent(context))
        if relax: check(cu.cuThreadExchangeStreamCaptureMode(RELAXED))
        results.append(code(cu.cuMemAlloc(100)))
    context = check(cu.cuCtxGetCurrent())
    for relax in (True, False):
        begin(); thread = threading.Thread(target=other, args=(relax,)); thread.start(); thread.join()
        results.append(end())
    assert results == [0, 0, 900, 901], results
    """
    )


def test_unjoined_and_foreign_ends(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    other = check(cu.cuStreamCreate(1)); event = check(cu.cuEventCreate(2))
    begin(); check(cu.cuEventRecord(event, stream)); check(cu.cuStreamWaitEvent(other, event, 0))
    check(launch(spin, 10, stream=other))
    assert end(other) == 903 and end() == 904
    assert int(check(cu.cuStreamIsCapturing(other))) == 0
    """
    )


def test_graph_built_by_hand_and_updated(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    p = check(cu.cuMemAlloc(64)); graph = check(cu.cuGraphCreate(0))
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value, params.elementSize, params.width, params.height = p, 3, 1, 64, 1
    context = check(cu.cuCtxGetCurrent())
    node = check(cu.cuGraphAddMemsetNode(graph, None, 0, params, context))
    executable = check(cu.cuGraphInstantiate(graph, 0)); check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuStreamSynchronize(stream))
    assert copy_from(p, 64) == b"\\x03" * 64
    params.value = 4; check(cu.cuGraphExecMemsetNodeSetParams(executable, node, params, context))
    check(cu.cuGraphLaunch(executable, stream)); check(cu.cuStreamSynchronize(stream))
    assert copy_from(p, 1) == b"\\x04"
    params.value = 5; check(cu.cuGraphMemsetNodeSetParams(node, params)); check(cu.cuGraphExecUpdate(executable, graph))
    check(cu.cuGraphLaunch(executable, stream)); check(cu.cuStreamSynchronize(stream))
    assert copy_from(p, 1) == b"\\x05"
    check(cu.cuGraphExecDestroy(executable)); check(cu.cuGraphDestroy(graph))
    """
    )


def test_a_graph_has_its_memory_from_the_first_launch_until_the_trim(machine: SimulatedMachine) -> None:
    machine.run(
        PRELUDE
        + """
    which = cu.CUgraphMem_attribute
    USED, RESERVED = which.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, which.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    def pool(): return [int(check(cu.cuDeviceGetGraphMemAttribute(0, a))) for a in (USED, RESERVED)]
    def free(): return check(cu.cuMemGetInfo())[0]
    MIB = 1 << 20; before = free(); out = check(cu.cuMemAlloc(64)); before = free()
    begin()
    p = check(cu.cuMemAllocAsync(3 * MIB, stream)); check(launch(fill, int(p), 64, 7, stream=stream))
    check(cu.cuMemcpyDtoDAsync(out, p, 64, stream)); check(cu.cuMemFreeAsync(p, stream))
    q = check(cu.cuMemAllocAsync(MIB, stream)); assert int(q) == int(p)   # one after the other: the same addresses
    check(cu.cuMemFreeAsync(q, stream))
    graph = check(cu.cuStreamEndCapture(stream)); executable = check(cu.cuGraphInstantiate(graph, 0))
    assert pool() == [0, 0] and free() == before
    for _ in range(2): check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuStreamSynchronize(stream)); assert copy_from(out, 64) == b"\\7" * 64
    assert pool() == [32 * MIB, 32 * MIB] and free() == before - 32 * MIB
    check(cu.cuGraphExecDestroy(executable)); check(cu.cuGraphDestroy(graph))
    assert pool() == [32 * MIB, 32 * MIB] and free() == before - 32 * MIB  # as measured on an H200
    check(cu.cuDeviceGraphMemTrim(0)); assert pool() == [0, 0] and free() == before
    """
    )


def test_graphs_share_memory_where_they_do_not_run_at_the_same_time(machine: SimulatedMachine) -> None:
    """What an H200 with driver 580 reserved for the same launches."""
    machine.run(
        PRELUDE
        + """
    which = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT; MIB = 1 << 20
    def reserved(): return int(check(cu.cuDeviceGetGraphMemAttribute(0, which))) // MIB
    streams = [check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(3)]
    def graph(mib, leaves=False):
        check(cu.cuStreamBeginCapture(streams[0], cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        p = check(cu.cuMemAllocAsync(mib * MIB, streams[0])); check(launch(fill, int(p), 64, 7, stream=streams[0]))
        if not leaves: check(cu.cuMemFreeAsync(p, streams[0]))
        return check(cu.cuGraphInstantiate(check(cu.cuStreamEndCapture(streams[0])), 0))
    word = check(cu.cuMemAlloc(4))
    def behind_a_gate(launches):
        check(cu.cuMemsetD32(word, 0, 1))
        for s in streams:
            check(cu.cuStreamWaitValue32(s, word, 1, cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ))
        for which, s in launches: check(cu.cuGraphLaunch(which, streams[s]))
        now = reserved()
        check(cu.cuMemsetD32Async(word, 1, 1, gate)); check(cu.cuCtxSynchronize())
        return now
    gate = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    a, b, c = (graph(256) for _ in range(3))
    assert behind_a_gate([(a, 0), (b, 0), (c, 0)]) == 256
    assert behind_a_gate([(b, 1)]) == 256
    assert behind_a_gate([(a, 0), (a, 1), (a, 2)]) == 256
    assert behind_a_gate([(a, 0), (b, 1)]) == 512
    assert behind_a_gate([(a, 0), (b, 1), (c, 2)]) == 768
    check(cu.cuDeviceGraphMemTrim(0)); assert reserved() == 0
    ten = [graph(100) for _ in range(10)]
    assert behind_a_gate([(each, i % 2) for i, each in enumerate(ten)]) == 256
    assert behind_a_gate([(each, i // 2 % 2) for i, each in enumerate(ten)]) == 384
    check(cu.cuDeviceGraphMemTrim(0))
    assert behind_a_gate([(graph(256, leaves=True), 0)]) == 256
    assert behind_a_gate([(a, 0)]) == 512
    """
    )
