"""Executors as processes: one for a device, one for each gpu-let, and their deaths. Real processes, no model."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import mmap
import os
import socket
import threading
from unittest import mock

import msgspec
import numpy as np
import psutil
import pytest

from gemlet.errors import GemletError
from gemlet.inference_protocol import tensors
from gemlet.serve.execution import device as devices
from gemlet.serve.execution import executor as executors
from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import Executor, ExecutorDied, ExecutorFailed, Input
from gemlet.serve.execution.process_settings import SWITCH_INTERVAL
from tests.unit.serve.stand_in import model

SECONDS = 40.0


def gpu_let(name, sm=0.5, key="echo"):
    return GpuLet(name=name, sm=sm, models={key: 8})


def x(*values):
    data = np.array(values, dtype=np.float32).tobytes()
    return Input("X", "FP32", (len(values), 1), [data], len(data))


def values(result):
    ((tensor, data),) = result.outputs
    return tensors.to_array(bytes(data), tensor.datatype, tensor.shape).reshape(-1).tolist()


@contextlib.asynccontextmanager
async def device_of(backend="noop", **more):
    """A device, and its reports of deaths and returns."""
    died, back = [], []
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        device = Device(
            0, backend, BackendOptions(), tasks,
            on_died=died.append, on_back=lambda new, old: back.append((new, old)), arena_bytes=1 << 20, **more,
        )  # fmt: skip
        try:
            await device.start()
            yield device, died, back
        finally:
            await device.close()


async def until(what):
    while not what():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_one_process_serves_all_gpu_lets_of_a_device():
    async def run():
        async with device_of() as (device, _, _):
            spec = model()
            await device.prepare({"echo": spec}, [gpu_let("a"), gpu_let("b")])
            executor = device.executor("a")
            assert device.executor("b") is executor
            assert values(await executor.run("a", "echo", [x(1.0, 2.0)], 2)) == [1.0, 2.0]
            await device.prepare({"echo": spec}, [gpu_let("b"), gpu_let("c")])
            assert values(await executor.run("c", "echo", [x(3.0)], 1)) == [3.0]
            with pytest.raises(GpuLetGone):
                await executor.run("a", "echo", [x(1.0)], 1)
            await device.retire(frozenset())
            with pytest.raises(GpuLetGone):
                await executor.run("b", "echo", [x(1.0)], 1)

    asyncio.run(run())


def test_lanes_come_and_go_with_gpu_lets():
    async def run():
        async with device_of() as (device, _, _):
            spec = {"echo": model()}
            await device.prepare(spec, [gpu_let("a"), gpu_let("b")])
            executor = device.executor("a")
            here, there = psutil.Process(), psutil.Process(executor.pid)
            before = here.num_fds(), there.num_fds(), there.num_threads()
            lane = executor._lanes["b"]
            for other in "cdefga":
                await device.prepare(spec, [gpu_let("b"), gpu_let(other)])
                assert executor._lanes.keys() == {"b", other}
                assert values(await executor.run(other, "echo", [x(1.0)], 1)) == [1.0]
            assert executor._lanes["b"] is lane
            await until(lambda: (here.num_fds(), there.num_fds(), there.num_threads()) == before)
        assert executor._lanes == {}

    asyncio.run(run())


def test_without_descriptors_batches_go_by_the_socket_of_all(monkeypatch, caplog):
    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    async def run():
        async with device_of() as (device, _, _):
            monkeypatch.setattr("socket.socketpair", none_left)
            await device.prepare({"echo": model()}, [gpu_let("a")])
            executor = device.executor("a")
            assert executor._lanes == {}
            assert values(await executor.run("a", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())
    assert "no lane for a: Too many open files" in caplog.text


def test_batches_on_their_way_to_a_gpu_let_that_goes_are_answered():
    async def run():
        async with device_of() as (device, _, _):
            spec = {"echo": model()}
            for name in ("a", "b") * 10:
                await device.prepare(spec, [gpu_let(name)])
                executor = device.executor(name)
                runs = [executor.run(name, "echo", [x(1.0)], 1) for _ in range(5)]
                await device.prepare(spec, [gpu_let("other")])
                for outcome in await asyncio.gather(*runs, return_exceptions=True):
                    assert isinstance(outcome, GpuLetGone) or values(outcome) == [1.0]

    asyncio.run(run())


def test_threads_of_an_executor_take_short_turns(tmp_path):
    (tmp_path / "1").mkdir()
    code = "import sys, numpy\ndef infer(inputs): return {'Y': numpy.full((1, 1), sys.getswitchinterval(), 'float32')}"
    (tmp_path / "1" / "model.py").write_text(code)
    spec = msgspec.structs.replace(model(platform="python"), directory=str(tmp_path))

    async def run():
        async with device_of("cpu") as (device, _, _):
            await device.prepare({"echo": spec}, [gpu_let("a")])
            assert values(await device.executor("a").run("a", "echo", [x(1.0)], 1)) == [np.float32(SWITCH_INTERVAL)]

    asyncio.run(run())


def test_tensors_without_room_in_the_arena_travel_in_the_message():
    async def run():
        async with device_of() as (device, _, _):
            await device.prepare({"echo": model(max_batch=4, inputs=(("X", "FP32", (-1,)),))}, [gpu_let("a")])
            big = np.arange(400_000, dtype=np.float32)
            given = Input("X", "FP32", (1, len(big)), [big.tobytes()], big.nbytes)
            assert big.nbytes > 1 << 20
            runs = [device.executor("a").run("a", "echo", [given], 1) for _ in range(3)]
            for result in await asyncio.gather(*runs):
                assert values(result)[-1] == 399_999

    asyncio.run(run())


@pytest.mark.parametrize("count", [4000, 1 << 20], ids=["arena", "message"])
def test_large_inputs_are_copied_in_a_thread_while_others_are_served(monkeypatch, count):
    monkeypatch.setattr(executors, "COPY_BYTES", 8000)

    async def run():
        async with device_of() as (device, _, _):
            await device.prepare({"echo": model()}, [gpu_let("a"), gpu_let("b")])
            executor, go_on = device.executor("a"), threading.Event()
            executor._copying(go_on.wait, lambda _: None)
            large = executor.run("a", "echo", [x(*range(count))], count)
            assert values(await executor.run("b", "echo", [x(1.0)], 1)) == [1.0]
            assert not large.done()
            go_on.set()
            assert values(await large) == list(range(count))
            assert executor._inputs.used == 0

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["gpu-let", "process", "copy"])
def test_inputs_that_are_copied_when_their_gpu_let_ends_come_back(monkeypatch, ends):
    monkeypatch.setattr(executors, "COPY_BYTES", 8000)

    async def run():
        async with device_of() as (device, died, _):
            await device.prepare({"echo": model()}, [gpu_let("a"), gpu_let("b")])
            executor, go_on = device.executor("a"), threading.Event()
            executor._copying(go_on.wait, lambda _: None)
            if ends == "copy":
                monkeypatch.setattr(executors, "copy", mock.Mock(side_effect=MemoryError("no room")))
            large = executor.run("a", "echo", [x(*range(4000))], 4000)
            if ends == "process":
                executor.kill()
                await until(lambda: died)
            elif ends == "gpu-let":
                await device.prepare({"echo": model()}, [gpu_let("b")])
            go_on.set()
            with pytest.raises({"gpu-let": GpuLetGone, "process": ExecutorDied, "copy": MemoryError}[ends]):
                await large
            if ends != "process":
                assert executor._inputs.used == 0
                assert values(await executor.run("b", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())


def test_a_dead_process_is_replaced_with_all_that_it_had():
    async def run():
        async with device_of() as (device, died, back):
            await device.prepare({"echo": model()}, [gpu_let("a")])
            executor = device.executor("a")
            os.kill(executor.pid, 9)
            await until(lambda: back)
            assert died == [executor]
            assert back == [(device.executor("a"), executor)]
            assert device.restarts == 1
            with pytest.raises(GpuLetGone):
                await executor.run("a", "echo", [x(1.0)], 1)
            assert values(await device.executor("a").run("a", "echo", [x(5.0)], 1)) == [5.0]

    asyncio.run(run())


def test_a_device_that_cannot_have_its_gpu_lets_back_starts_again_with_them(monkeypatch, caplog):
    async def fail(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async def run():
        async with device_of() as (device, died, back):
            spec = {"echo": model()}
            await device.prepare(spec, [gpu_let("a")])
            had = device.gpu_lets
            await device.prepare(spec, [gpu_let("b")])
            with monkeypatch.context() as failing:
                failing.setattr(Executor, "partition", fail)
                await device.restore(spec, had)
            assert device.gpu_lets == had
            await until(lambda: back)
            assert len(died) == 1
            assert values(await device.executor("a").run("a", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())
    assert "Cannot allocate memory" in caplog.text


def test_what_a_dying_process_had_is_told_at_once():
    async def run():
        async with device_of("modelled") as (device, died, _):
            spec = model(platform="modelled", parameters={"profile": "vgg16"})
            await device.prepare({"echo": spec}, [gpu_let("a", 1e-7)])  # so small a share that a batch takes for ever
            run = device.executor("a").run("a", "echo", [x(1.0)], 1)
            await asyncio.sleep(0.1)
            device.executor("a").kill()
            with pytest.raises(ExecutorDied):
                await run
            await until(lambda: died)

    asyncio.run(run())


def test_a_process_for_each_gpu_let(monkeypatch):
    monkeypatch.setattr(devices, "PER_GPU_LET", frozenset({"noop"}))

    async def run():
        async with device_of() as (device, died, back):
            spec = {"echo": model()}
            await device.prepare(spec, [gpu_let("a", 0.25), gpu_let("b", 0.5)])
            a, b = device.executor("a"), device.executor("b")
            assert a.pid != b.pid
            shares = [psutil.Process(each.pid).environ()["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for each in (a, b)]
            assert shares == ["25", "50"]
            await device.prepare(spec, [gpu_let("b", 0.5), gpu_let("c", 0.25)])
            assert device.executor("b") is b
            assert values(await a.run("a", "echo", [x(1.0)], 1)) == [1.0]  # until it is retired
            await device.retire(frozenset(spec))
            assert a.died.is_set()
            b.kill()
            await until(lambda: back)
            assert died == [b]
            assert device.executor("b").pid != b.pid
            assert values(await device.executor("b").run("b", "echo", [x(2.0)], 1)) == [2.0]

    asyncio.run(run())


def waits_for(number, folder):
    """A model that is loaded once so many processes load it."""
    (folder / "1").mkdir()
    code = f"""
import os, pathlib, time
folder = pathlib.Path({str(folder)!r})
(folder / f"loads-{{os.getpid()}}").touch()
while len(list(folder.glob("loads-*"))) < {number}:
    time.sleep(0.01)

def infer(inputs):
    return {{"Y": inputs["X"]}}
"""
    (folder / "1" / "model.py").write_text(code)
    return msgspec.structs.replace(model(platform="python"), directory=str(folder))


def test_processes_of_gpu_lets_start_side_by_side(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "PER_GPU_LET", frozenset({"cpu"}))

    async def run():
        async with device_of("cpu") as (device, _, _):
            await device.prepare({"echo": waits_for(3, tmp_path)}, [gpu_let(name, 0.25) for name in "abc"])
            assert len(device.pids) == 3

    asyncio.run(run())


def test_if_one_process_of_a_gpu_let_cannot_start_none_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "PER_GPU_LET", frozenset({"cpu"}))
    waiting = waits_for(99, tmp_path)
    bad = msgspec.structs.replace(model("bad", platform="python"), directory=str(tmp_path / "nowhere"))

    async def run():
        async with device_of("cpu") as (device, _, _):
            children = set(psutil.Process().children())
            with pytest.raises(GemletError, match="bad"):
                await device.prepare({"echo": waiting, "bad": bad}, [gpu_let("a"), gpu_let("b", 0.5, "bad")])
            assert not set(psutil.Process().children()) - children
            assert device.pids == []
            assert device.models == {}

    asyncio.run(run())


def loaded_unless(gate):
    """A model that cannot be loaded while there is this file."""
    folder = gate.parent / "gated"
    (folder / "1").mkdir(parents=True)
    code = f"""
import pathlib
if pathlib.Path({str(gate)!r}).exists():
    raise ValueError("not now")

def infer(inputs):
    return {{"Y": inputs["X"]}}
"""
    (folder / "1" / "model.py").write_text(code)
    return msgspec.structs.replace(model("gated", platform="python"), directory=str(folder))


def test_a_process_of_a_gpu_let_that_came_back_without_a_model_is_not_kept_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "PER_GPU_LET", frozenset({"cpu"}))
    gate, missing = tmp_path / "gate", []
    models = {"echo": waits_for(1, tmp_path), "gated": loaded_unless(gate)}
    both = GpuLet(name="a", sm=0.5, models={"echo": 8, "gated": 8})

    async def run():
        async with device_of("cpu", on_missing=lambda *told: missing.append(told[1])) as (device, _, back):
            await device.prepare(models, [both])
            gate.touch()
            device.executor("a").kill()
            await until(lambda: back)
            assert missing == ["gated"]
            assert values(await device.executor("a").run("a", "echo", [x(1.0)], 1)) == [1.0]
            gate.unlink()
            await device.prepare(models, [both])
            assert values(await device.executor("a").run("a", "gated", [x(2.0)], 1)) == [2.0]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("share", "revision"), [(0.5, "1"), (0.25, "2")], ids=["another share", "other files of the model"]
)
def test_a_gpu_let_that_keeps_its_name_gets_another_process_for(monkeypatch, share, revision):
    monkeypatch.setattr(devices, "PER_GPU_LET", frozenset({"noop"}))

    async def run():
        async with device_of() as (device, died, _):
            first, second = model(revision="1"), model(revision=revision)
            await device.prepare({first.key: first}, [gpu_let("a", 0.25, first.key), gpu_let("b", 0.5, first.key)])
            old, other = device.executor("a"), device.executor("b")
            await device.prepare({second.key: second}, [gpu_let("a", share, second.key), gpu_let("b", 0.5, second.key)])
            new = device.executor("a")
            assert new.pid != old.pid
            assert (device.executor("b") is other) == (revision == "1")
            environment = psutil.Process(new.pid).environ()
            assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == f"{100 * share:g}"
            assert values(await old.run("a", first.key, [x(1.0)], 1)) == [1.0]  # until it is retired
            await device.retire(frozenset({second.key}))
            assert not psutil.pid_exists(old.pid)
            assert values(await new.run("a", second.key, [x(2.0)], 1)) == [2.0]
            assert died == []

    asyncio.run(run())


def test_a_device_that_is_parked_while_it_is_started_again_stays_empty(monkeypatch):
    monkeypatch.setattr(devices, "FIRST_DELAY_S", 0.0)

    async def run():
        async with device_of() as (device, died, back):
            others = {child.pid for child in psutil.Process().children()} - set(device.pids)
            device.executor("a").kill()
            await until(lambda: died)
            await asyncio.sleep(0.02)
            await device.park()
            assert device.pids == []
            await until(lambda: not device._watchers)
            left = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
            assert {child.pid for child in left} <= others
            assert back == []

    asyncio.run(run())


@pytest.mark.parametrize("which", range(8))
def test_an_executor_for_which_nothing_is_left_is_refused_and_leaves_nothing(monkeypatch, which):
    async def run():
        executor = Executor("executor", "noop", BackendOptions(), arena_bytes=1 << 20)
        gc.collect()  # what other tests left
        before, calls = psutil.Process().num_fds(), itertools.count()

        def limited(function):
            def call(*given, **more):
                if next(calls) == which:
                    raise RuntimeError("no thread") if which >= 6 else OSError(errno.EMFILE, "no file")
                return function(*given, **more)

            return call

        for module, name in ((socket, "socketpair"), (os, "memfd_create"), (mmap, "mmap"), (threading.Thread, "start")):
            monkeypatch.setattr(module, name, limited(getattr(module, name)))
        with pytest.raises(ExecutorFailed, match=r"no (file|thread)"):
            await executor.start()
        monkeypatch.undo()
        del executor
        await asyncio.sleep(0)
        gc.collect()
        assert psutil.Process().num_fds() == before

    asyncio.run(run())


def test_a_backend_that_cannot_start_says_why():
    async def run():
        executor = Executor("executor", "green", BackendOptions())
        with pytest.raises(ExecutorFailed) as failure:
            await executor.start()
        assert "executor: " in failure.value.message
        executor = Executor("executor", "nonsense", BackendOptions())
        with pytest.raises(ExecutorFailed, match="there is no backend 'nonsense'"):
            await executor.start()

    asyncio.run(run())


def test_no_process_outlives_its_server():
    async def run():
        async with device_of() as (device, _, _):
            return device.pids

    (pid,) = asyncio.run(run())
    assert not psutil.pid_exists(pid)


def test_a_model_that_cannot_be_loaded_leaves_the_device_as_it_was():
    async def run():
        async with device_of("modelled") as (device, _, _):
            good = {"echo": model(platform="modelled", parameters={"profile": "lenet1"})}
            await device.prepare(good, [gpu_let("a")])
            with pytest.raises(GemletError, match="there is no profile"):
                await device.prepare({"new": model("new", platform="modelled")}, [gpu_let("b")])
            assert device.gpu_lets == (gpu_let("a"),)
            assert len((await device.executor("a").run("a", "echo", [x(1.0)], 1)).outputs) == 1

    asyncio.run(run())


def test_what_is_new_waits_for_an_executor_that_is_started_again(monkeypatch):
    async def run():
        async with device_of("modelled") as (device, _, back):
            good = {"echo": model(platform="modelled", parameters={"profile": "lenet1"})}
            await device.prepare(good, [gpu_let("a")])
            os.kill(device.executor("a").pid, 9)
            await device.executor("a").died.wait()
            with pytest.raises(GemletError, match="there is no profile"):
                await device.prepare(good | {"new": model("new", platform="modelled")}, [gpu_let("a")])
            assert len(back) == 1
            assert device.models == good
            monkeypatch.setattr("gemlet.serve.execution.device.BACK_SECONDS", 0.0)
            os.kill(device.executor("a").pid, 9)
            await device.executor("a").died.wait()
            with pytest.raises(ExecutorFailed, match="being started again"):
                await device.prepare({"other": good["echo"]}, [gpu_let("a")])
            await device.prepare(good, [gpu_let("b")])  # nothing of it is new
            assert device.gpu_lets == (gpu_let("b"),)

    asyncio.run(run())


def test_what_is_new_does_not_wait_for_an_executor_of_a_server_that_ends(monkeypatch):
    monkeypatch.setattr("gemlet.serve.execution.device.BACK_SECONDS", 3600.0)

    async def run():
        async with device_of("noop") as (device, _, _), asyncio.timeout(60):
            await device.close()
            with pytest.raises(ExecutorFailed, match="being started again"):
                await device.load({"new": model("new", platform="noop")})

    asyncio.run(run())


ENDLESS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def {method}(self, *_):
        time.sleep(3600)

    def execute(self, requests):
        return []
"""


def endless(folder, method):
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(ENDLESS.replace("{method}", method))
    spec = model("endless", platform="triton_python")
    return msgspec.structs.replace(spec, directory=str(folder))


def test_a_model_that_never_ends_its_end_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "UNLOAD_SECONDS", 0.1)

    async def run():
        async with device_of("cpu") as (device, died, back):
            bad = endless(tmp_path / "bad", "finalize")
            await device.prepare({bad.key: bad}, [gpu_let("a", key=bad.key)])
            await device.prepare({}, [])
            await device.retire(frozenset())
            await until(lambda: back)
            await device.prepare({}, [gpu_let("b", key="none")])
            assert (len(died), device.alive, device.models) == (1, True, {})

    asyncio.run(run())


def test_a_model_that_is_never_loaded_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "LOAD_SECONDS", 0.1)

    async def run():
        async with device_of("cpu") as (device, _, back):
            bad = endless(tmp_path / "bad", "initialize")
            with pytest.raises(GemletError, match="died while it loaded endless"):
                await device.prepare({bad.key: bad}, [gpu_let("a", key=bad.key)])
            await until(lambda: back)
            assert (device.alive, device.models) == (True, {})

    asyncio.run(run())
