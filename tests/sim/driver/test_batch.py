"""libgembatch.so.1 and its caller in Python, on the simulated machine: graphs, failures, threads and contexts."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine

pytestmark = pytest.mark.usefixtures("products")
pytest.importorskip("numpy", reason="needs numpy, of the extra serve")
FOLDER = Path(__file__).parent

# y = x + value, z = w, after `spin_ns` of work; eight words each.
PRELUDE = """
import logging, threading
import numpy as np
from gemlet.serve.execution import batch_call
from gemlet.serve.execution.batch_call import BatchCall, BatchFailed, GraphTensor, Step

WORDS = 8
context = open_device()
add, spin = kernel("add"), kernel("spin")

def pinned():
    address = check(cu.cuMemHostAlloc(8 * WORDS, 0))
    return np.frombuffer((ctypes.c_ubyte * (8 * WORDS)).from_address(int(address)), np.uint64)

def prepare(value, spin_ns=0, watched=True):
    stream = check(cu.cuStreamCreate(1))
    x, w, y, z = (check(cu.cuMemAlloc(8 * WORDS)) for _ in range(4))
    check(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    if spin_ns:
        check(launch(spin, spin_ns, stream=stream))
    for source, target in ((x, y), (w, z)):
        check(cu.cuMemcpyDtoDAsync(target, source, 8 * WORDS, stream))
    check(launch(add, int(y), WORDS, value, stream=stream))
    graph = check(cu.cuGraphInstantiate(check(cu.cuStreamEndCapture(stream)), 0))
    given = [GraphTensor("x", pinned(), int(x)), GraphTensor("w", pinned(), int(w))]
    taken = [GraphTensor("y", pinned(), int(y)), GraphTensor("z", pinned(), int(z))]
    done = pinned().view(np.uint32)[:1] if watched else None
    return BatchCall(batch_call.driver(0), int(stream), int(graph), given, taken, done=done), stream

def words(first):
    return np.arange(first, first + WORDS, dtype=np.uint64)

def right(outputs, x, w, value):
    assert list(outputs) == ["y", "z"]
    np.testing.assert_array_equal(outputs["y"], x + np.uint64(value))
    np.testing.assert_array_equal(outputs["z"], w)
    return True

def meaning(code):
    return check(cu.cuGetErrorString(cu.CUresult(code))).decode()

def current():
    return int(check(cu.cuCtxGetCurrent()))
"""


@pytest.fixture
def products(machine: SimulatedMachine, library_path: Path) -> None:
    """The environment for the library under test, and a sanitizer's runtime, if there is one."""
    folders = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"GEMLET_LIB_DIR": str(library_path.parents[1]), "PYTHONPATH": os.pathsep.join(folders)}
    if "san" in os.environ.get("LD_PRELOAD", ""):
        env["LD_PRELOAD"] = os.environ["LD_PRELOAD"]
    machine.env |= env


def run(machine: SimulatedMachine, script: str, **env: str) -> str:
    """Runs ``script`` after the prelude."""
    return machine.run(PRELUDE + textwrap.dedent(script), **env)


def test_each_batch_is_what_its_inputs_make_it(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(7)
    first = call.run({"x": words(1), "w": words(50)})
    right(first, words(1), words(50), 7)
    second = call.run({"w": words(60), "x": words(1000)})   # by name, whatever the order
    right(second, words(1000), words(60), 7)
    assert first is not second and first["y"] is second["y"]   # valid until the next call
    read_only = words(3); read_only.flags.writeable = False
    right(call.run({"x": read_only, "w": read_only}), words(3), words(3), 7)
    """,
    )


def test_other_types_strides_and_shapes_are_taken_as_numpy_copies_them(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(1)
    every_other = np.arange(2 * WORDS, dtype=np.uint64)[::2]
    right(call.run({"x": every_other, "w": words(5)}), every_other, words(5), 1)
    small = np.arange(WORDS, dtype=np.uint8)
    right(call.run({"x": small, "w": words(5).astype(">u8")}), small.astype(np.uint64), words(5), 1)
    right(call.run({"x": np.array([9], np.uint64), "w": words(0)}), np.full(WORDS, 9, np.uint64), words(0), 1)
    for wrong, error in ((np.zeros(3, np.uint64), ValueError), (np.zeros(WORDS), TypeError)):
        try:
            call.run({"x": wrong, "w": words(0)})
        except error:
            pass
        else:
            raise AssertionError("it was taken")
    right(call.run({"x": words(1), "w": words(2)}), words(1), words(2), 1)
    """,
    )


@pytest.mark.parametrize(
    ("fault", "step", "place", "where"),
    [
        ("cuCtxGetCurrent:1=3", "CONTEXT", 0, " (making the context current)"),
        ("cuMemcpyHtoDAsync:1=1", "INPUT", 0, " (copying input 'x')"),
        ("cuMemcpyHtoDAsync:2=2", "INPUT", 1, " (copying input 'w')"),
        ("cuGraphLaunch:1=701", "LAUNCH", 0, " (launching the graph)"),
        ("cuMemcpyDtoHAsync:2=2", "OUTPUT", 1, " (copying output 'z')"),
        ("cuStreamQuery:1=700", "WAIT", 0, ""),
    ],
)
def test_what_fails_is_named_and_nothing_runs_any_more(
    machine: SimulatedMachine, fault: str, step: str, place: int, where: str
) -> None:
    run(
        machine,
        f"""
    call, stream = prepare(7, spin_ns=50_000_000)
    try:
        call.run({{"x": words(1), "w": words(2)}})
    except BatchFailed as error:
        assert (error.code, error.step, error.place) == ({fault.split("=")[1]}, Step.{step}, {place}), error.step
        assert str(error) == "CUDA error: " + meaning(error.code) + {where!r}, error
    else:
        raise AssertionError("nothing failed")
    if Step.{step} != Step.WAIT:   # there waiting is what failed
        assert code(cu.cuStreamQuery(stream)) == 0, "the batch goes on"
    right(call.run({{"x": words(3), "w": words(4)}}), words(3), words(4), 7)
    """,
        GEMLET_SIM_FAULTS=fault,
    )


@pytest.mark.parametrize(
    ("watched", "fault"), [(False, "cuStreamWriteValue32:1=801!"), (True, "cuStreamWriteValue32:1=801")]
)
def test_without_a_word_to_watch_the_driver_waits(machine: SimulatedMachine, watched: bool, fault: str) -> None:
    run(
        machine,
        f"""
    call, stream = prepare(7, spin_ns=20_000_000, watched={watched})
    for n in (1, 2):
        right(call.run({{"x": words(n), "w": words(2)}}), words(n), words(2), 7)
    """,
        GEMLET_SIM_FAULTS=fault,
    )


def test_waiting_makes_no_call_of_the_driver(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(7, spin_ns=20_000_000)
    right(call.run({"x": words(1), "w": words(2)}), words(1), words(2), 7)
    """,
        GEMLET_SIM_FAULTS="cuStreamSynchronize:1=700",
    )


def test_a_waiting_thread_leaves_the_only_processor_to_others(machine: SimulatedMachine) -> None:
    """Counted in naps, not in processor time: how fast the machine is does not matter."""
    run(
        machine,
        """
    import resource
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    call, stream = prepare(7, spin_ns=4_000_000)   # shorter than a thread would spin
    naps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for n in range(50):
        right(call.run({"x": words(n), "w": words(2)}), words(n), words(2), 7)
    naps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - naps
    assert naps >= 50, naps
    """,
    )


def test_after_an_error_of_the_device_every_batch_says_so(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(7)
    for _ in range(2):
        try:
            call.run({"x": words(1), "w": words(2)})
        except BatchFailed as error:
            assert error.code == 719
        else:
            raise AssertionError("nothing failed")
    """,
        GEMLET_SIM_FAULTS="cuGraphLaunch:1=719!",
    )


def test_a_thread_keeps_the_context_it_came_with_or_none(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(7)
    told = []
    def work():
        try:
            assert current() == 0
            right(call.run({"x": words(1), "w": words(2)}), words(1), words(2), 7)
            assert current() == 0
            other = check(cu.cuCtxCreate(None, 0, 0))
            assert current() == int(other) != int(context)
            right(call.run({"x": words(3), "w": words(4)}), words(3), words(4), 7)
            assert current() == int(other)
            check(cu.cuCtxDestroy(other))
        except BaseException as error:
            told.append(error)
    thread = threading.Thread(target=work); thread.start(); thread.join()
    if told: raise told[0]
    assert current() == int(context)
    """,
    )


def test_two_threads_have_a_stream_each(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    done = {}
    def work(value, call):
        done[value] = sum(
            right(call.run({"x": words(value * n), "w": words(n)}), words(value * n), words(n), value)
            for n in range(100)
        )
    threads = [threading.Thread(target=work, args=(value, prepare(value)[0])) for value in (3, 1000)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert done == {3: 100, 1000: 100}, done
    """,
    )


def test_other_threads_run_during_a_batch(machine: SimulatedMachine) -> None:
    run(
        machine,
        """
    call, stream = prepare(7, spin_ns=500_000_000)
    turns, during = 0, []
    def work():
        before = turns
        call.run({"x": words(1), "w": words(2)})
        during.append(turns - before)
    thread = threading.Thread(target=work); thread.start()
    while not during:
        time.sleep(0.001); turns += 1
    thread.join()
    assert during[0] >= 5, during   # with the lock held: one or two
    """,
    )


def test_what_is_missing_is_said_once(machine: SimulatedMachine, tmp_path: Path) -> None:
    script = """
    import logging
    from gemlet.serve.execution import batch_call
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    assert batch_call.driver(int(sys.argv[1])) is None and batch_call.driver(int(sys.argv[1])) is None
    """

    def told(device: int, **env: str) -> str:
        (line,) = machine.run(script, device, **env).splitlines()
        return line

    head = "batches take several calls of Python each: "
    (tmp_path / "libcuda.so.1").write_text("not a library; comes before any real one")
    # The prelude of every program, cuda-bindings, looks for the driver only when it is used.
    without = told(0, LD_LIBRARY_PATH=str(tmp_path))
    assert without == head + "libgembatch.so.1 cannot use the driver: libcuda.so.1"
    assert told(99) == head + "libgembatch.so.1 cannot use the driver: cuDeviceGet: invalid device"
    assert told(0, GEMLET_LIB_DIR=str(tmp_path)).startswith(head + "cannot load libgembatch.so.1: ")


def test_a_driver_that_lacks_a_function_is_refused(machine: SimulatedMachine, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
    old = ["-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "old.c")]
    subprocess.run([compiler, *old], check=True, timeout=120)
    script = """
    from gemlet.errors import DeviceError
    from gemlet.serve.execution import batch_call
    try:
        batch_call.Driver(0)
    except DeviceError as error:
        print(error.message)
    """
    told = machine.run(script, LD_LIBRARY_PATH=str(tmp_path))
    assert told == "libgembatch.so.1 cannot use the driver: cuDeviceGet\n"
