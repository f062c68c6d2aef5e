"""The server's side of an executor notices its end, whatever is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from unittest import mock

import msgspec
import pytest

from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone
from gemlet.serve.execution.executor import Executor, ExecutorDied, Input
from gemlet.serve.execution.worker import NO_ORDERS
from tests.unit.serve.stand_in import model

FORKS = """\
import os
import pathlib
import time


def infer(inputs):
    child = os.fork()
    if not child:
        time.sleep(3600)
    path = pathlib.Path(__file__).parent / "child"
    path.with_suffix(".new").write_text(str(child))
    path.with_suffix(".new").rename(path)
    time.sleep(3600)
"""
BECOMES_ANOTHER = """\
import os


def infer(inputs):
    os.execv("/bin/sleep", ["sleep", "3600"])
"""
HANGS = """\
import pathlib
import time


def infer(inputs):
    (pathlib.Path(__file__).parent / "begun").touch()
    time.sleep(3600)
"""
PATIENCE_S = 120  # a limit for what never comes


async def started(folder, code):
    """An executor, and a model of this code."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    executor = Executor("one", "cpu", BackendOptions(device=0), arena_bytes=1 << 20)
    await executor.start()
    return executor, msgspec.structs.replace(model("bad", platform="python", max_batch=0), directory=str(folder))


async def appears(path):
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.01)


async def at_work(folder, code):
    """An executor, and a batch that it has begun."""
    executor, spec = await started(folder, code)
    await executor.load(spec)
    await executor.partition([GpuLet(name="let", sm=1.0, models={spec.key: 1})])
    return executor, executor.run("let", spec.key, [Input("X", "FP32", (1,), [bytes(4)], 4)], 1)


def test_a_child_that_keeps_the_sockets_hides_no_death(tmp_path):
    """As those of multiprocessing do, which fork."""

    async def run():
        executor, running = await at_work(tmp_path, FORKS)
        told = tmp_path / "1" / "child"
        await appears(told)
        child = int(told.read_text())
        try:
            executor.kill()
            async with asyncio.timeout(PATIENCE_S):
                await executor.died.wait()
            assert executor.died_at_work
            os.kill(child, 0)  # it is still there
        finally:
            os.kill(child, signal.SIGKILL)
        with pytest.raises(ExecutorDied):
            await running
        await executor.reap()

    asyncio.run(run())


def test_a_process_that_becomes_another_program_is_ended(tmp_path):
    async def run():
        executor, running = await at_work(tmp_path, BECOMES_ANOTHER)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExecutorDied):
                await running
            assert await executor.reap() == -signal.SIGKILL

    asyncio.run(run())


ENDS_ITS_GROUP = """\
import os
import signal


def infer(inputs):
    os.killpg(0, signal.SIGUSR1)
"""


def test_a_model_that_ends_its_process_group_ends_its_executor(tmp_path):
    async def run():
        signals = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, signals.append, 1)
        executor, running = await at_work(tmp_path, ENDS_ITS_GROUP)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExecutorDied):
                await running
            assert await executor.reap() == -signal.SIGUSR1
        await asyncio.sleep(0)
        assert signals == []

    asyncio.run(run())


def test_what_a_process_said_before_it_ended_is_heard():
    async def run():
        executor = Executor("one", "nonsense", BackendOptions(device=0), arena_bytes=1 << 20)
        with pytest.raises(Exception, match="nonsense"):
            await executor.start()

    asyncio.run(run())


def test_a_process_that_was_told_to_stop_and_cannot_ends_with_its_server(tmp_path):
    """The server would kill it in a moment, and is killed itself before."""

    async def run():
        executor, running = await at_work(tmp_path, HANGS)
        await appears(tmp_path / "1" / "begun")
        executor._closing = True
        executor._transport.write(protocol.frame(protocol.Stop()))
        executor._drop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await executor.reap() == 0
        finally:
            executor.kill()
        with pytest.raises(ExecutorDied):
            await running

    asyncio.run(run())


LOSES_ITS_LANE = """\
import os
import sys


def infer(inputs):
    frame = sys._getframe()
    while "lane" not in frame.f_locals:
        frame = frame.f_back
    lane = frame.f_locals["lane"]._connection.fileno()
    {lose}
    return {{"Y": inputs["X"]}}
"""
CLOSES = LOSES_ITS_LANE.format(lose="os.close(lane)")
SAYS_NONSENSE = LOSES_ITS_LANE.format(lose=r"os.write(lane, b'\1\0\0\0\xc1')")


@pytest.mark.parametrize("code", [CLOSES, SAYS_NONSENSE])
def test_a_process_without_the_lane_of_a_gpu_let_is_ended(tmp_path, code):
    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        executor, running = await at_work(tmp_path, code)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExecutorDied):
                await running
            for _ in range(3):  # what comes until the process has ended did not make it end
                with pytest.raises(GpuLetGone):
                    await executor.run("let", "bad", [Input("X", "FP32", (1,), [bytes(4)], 4)], 1)
            assert await executor.reap() in {NO_ORDERS, -signal.SIGKILL}
        await executor.close()

    asyncio.run(run())


def test_a_process_that_reads_no_messages_any_more_is_ended(tmp_path):
    """It would answer batches by its lanes, and do nothing else."""

    async def run():
        executor, spec = await started(tmp_path, "def infer(inputs):\n    return {'Y': inputs['X']}\n")
        await executor.load(spec)
        await executor.partition([GpuLet(name="let", sm=1.0, models={spec.key: 1})])
        executor.reply(protocol.Reply(7))  # to nobody
        async with asyncio.timeout(PATIENCE_S):
            assert await executor.reap() == NO_ORDERS
            await executor.died.wait()
        await executor.close()

    asyncio.run(run())


def test_what_comes_as_a_lane_ends_is_not_lost(tmp_path):
    """The server may know of the lane's end before it knows of that of the process."""

    async def run():
        executor, spec = await started(tmp_path, "def infer(inputs):\n    return {'Y': inputs['X']}\n")
        await executor.load(spec)
        await executor.partition([GpuLet(name="let", sm=1.0, models={spec.key: 1})])
        os.kill(executor.pid, signal.SIGSTOP)
        executor.lane_lost(executor._lanes["let"])
        assert executor.died.is_set()
        with pytest.raises(GpuLetGone):
            await executor.run("let", spec.key, [Input("X", "FP32", (1,), [bytes(4)], 4)], 1)
        assert await executor.reap() == -signal.SIGKILL
        await executor.close()

    asyncio.run(run())


def test_a_model_that_closes_what_it_did_not_open_ends_its_executor(tmp_path):
    """As code does that makes a daemon of itself."""

    async def run():
        executor, spec = await started(tmp_path, "import os\n\nos.closerange(3, 1000)\n")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExecutorDied):
                await executor.load(spec)
            await executor.reap()
        await executor.close()

    asyncio.run(run())


CLOSES_ALL_BESIDE_A_CHILD = """\
import ctypes
import os
import pathlib
import time

child = ctypes.CDLL(None).fork()  # past what Python does in a child
if not child:
    time.sleep(3600)
(pathlib.Path(__file__).parent / "child").write_text(str(child))


def infer(inputs):
    os.closerange(3, 1000)
    return {"Y": inputs["X"]}
"""


def test_a_model_that_closes_all_while_a_child_has_it_ends_its_executor(tmp_path):
    async def run():
        executor, running = await at_work(tmp_path, CLOSES_ALL_BESIDE_A_CHILD)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ExecutorDied):
                    await running
                assert await executor.reap() in {
                    NO_ORDERS,
                    -signal.SIGKILL,
                }  # its own end, or that of its lane, was first
            await executor.close()
        finally:
            os.kill(int((tmp_path / "1" / "child").read_text()), signal.SIGKILL)

    asyncio.run(run())


LEAVES_FEW_FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
LEAVES_LITTLE_MEMORY = "resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))"
LARGE_STACKS = "threading.stack_size(1 << 46)"
SHORT_TIMEOUTS = "socket.setdefaulttimeout(0.001)"
NO_HOOKS = "sys.excepthook = threading.excepthook = None"
WATCHES_THREADS = "threading.settrace(len); threading.setprofile(len)"  # which fails
OF_MODULES = """\
import resource
import socket
import sys
import threading

%s


def infer(inputs):
    return {"Y": inputs["X"]}
"""


@pytest.mark.parametrize(
    "code", [LEAVES_FEW_FILES, LEAVES_LITTLE_MEMORY, LARGE_STACKS, SHORT_TIMEOUTS, NO_HOOKS, WATCHES_THREADS]
)
def test_what_a_model_sets_for_its_process_is_for_no_other_models(tmp_path, code):
    async def run():
        executor, running = await at_work(tmp_path, OF_MODULES % code)
        async with asyncio.timeout(PATIENCE_S):
            assert [tensor.name for tensor, _ in (await running).outputs] == ["Y"]
            await executor.partition([GpuLet(name=name, sm=0.5, models={}) for name in ("let", "another")])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(executor.died.wait(), 0.1)
        await executor.close()

    asyncio.run(run())


BECOMES_A_DAEMON = """\
import os
import pathlib

child = os.fork()
if child:
    (pathlib.Path(__file__).parent / "child").write_text(str(child))
    os._exit(0)
os.setsid()


def infer(inputs):
    return {"Y": inputs["X"]}
"""


def test_a_child_does_not_answer_in_the_place_of_its_parent(tmp_path):
    async def run():
        executor, spec = await started(tmp_path, BECOMES_A_DAEMON)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ExecutorDied):
                await executor.load(spec)
            assert await executor.reap() == 0
            child = int((tmp_path / "1" / "child").read_text())
            while os.path.exists(f"/proc/{child}"):  # noqa: ASYNC110, PTH110  nothing tells
                await asyncio.sleep(0.01)
        await executor.close()

    asyncio.run(run())


def test_what_cannot_be_sent_is_an_error_of_its_batch_and_leaves_nothing():
    async def run():
        executor = Executor("executor", "cpu", BackendOptions())
        executor._transport = mock.Mock(is_closing=mock.Mock(return_value=False))
        executor._inputs = mock.Mock(allocate=mock.Mock(return_value=0))
        executor._inputs.view = memoryview(bytearray(1 << 20))
        large = Input("X", "FP32", (1 << 17,), [bytes(1 << 19)], 1 << 19)
        future = executor.run("let", "echo", [large, Input("Z", "FP32", (0, 10**30), [b""], 0)], 1)
        with pytest.raises(OverflowError):
            await future
        executor._inputs.release.assert_called_once_with(0)
        assert not executor._held
        assert not executor._waiting

    asyncio.run(run())


def test_more_gpu_lets_than_lanes_at_the_door():
    """Only the order to take them empties the door. Waiting for room there before would never end."""

    def stuck(*_):
        raise AssertionError("the event loop waits for room at the door")

    async def run():
        executor = Executor("one", "noop", BackendOptions(device=0), arena_bytes=1 << 20)
        await executor.start()
        try:
            await executor.load(model("m", outputs=(("Y", "FP32", (1,)),)))
            names = [f"let{number}" for number in range(400)]
            for count in (399, 400):  # those that had none the first time get none the second
                await executor.partition([GpuLet(name=name, sm=1.0, models={"m": 8}) for name in names[:count]])
                for name in (names[0], names[count - 1]):
                    given = [Input("X", "FP32", (1, 1), [bytes(4)], 4)]
                    await asyncio.wait_for(executor.run(name, "m", given, 1), PATIENCE_S)
                assert not executor.died.is_set()
            assert 0 < len(executor._lanes) < 400
            await executor.partition([GpuLet(name=name, sm=1.0, models={"m": 8}) for name in names[:1]])
            await executor.partition([GpuLet(name=name, sm=1.0, models={"m": 8}) for name in (names[0], names[399])])
            assert len(executor._lanes) == 2, "one that was away is a new one"
            given = [Input("X", "FP32", (1, 1), [bytes(4)], 4)]
            await asyncio.wait_for(executor.run(names[399], "m", given, 1), PATIENCE_S)
        finally:
            await executor.close()

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(PATIENCE_S)
    try:
        asyncio.run(run())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
