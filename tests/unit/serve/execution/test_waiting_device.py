"""A device whose executor stands still, or takes its time to come back, keeps no other one waiting."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from gemlet.serve.execution import device as devices
from tests.unit.serve.execution.test_device import device_of, gpu_let, until, values, x
from tests.unit.serve.stand_in import model


def slow_to_load_again(folder):
    """A model that is loaded again only once there is a file `go`."""
    (folder / "1").mkdir()
    code = f"""
import pathlib, time
folder = pathlib.Path({str(folder)!r})
while (folder / "loaded").exists() and not (folder / "go").exists():
    (folder / "again").touch()
    time.sleep(0.01)
(folder / "loaded").touch()

def infer(inputs):
    return {{"Y": inputs["X"]}}
"""
    (folder / "1" / "model.py").write_text(code)
    return msgspec.structs.replace(model(platform="python"), directory=str(folder))


async def stop(pid):
    """Returns once all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: {stat.read_text().rpartition(")")[2].split()[0] for stat in stats(pid)} == {"T"})


def stats(pid):
    return Path(f"/proc/{pid}/task").glob("*/stat")


def test_gpu_lets_of_a_device_that_loads_its_models_again_are_made_when_it_is_back(tmp_path):
    async def run():
        async with device_of("cpu") as (device, _, back):
            spec = {"echo": slow_to_load_again(tmp_path)}
            await device.prepare(spec, [gpu_let("a")])
            device.executor("a").kill()
            await until((tmp_path / "again").exists)
            await device.answers()
            await device.prepare(spec, [gpu_let("b")])
            assert not back
            (tmp_path / "go").touch()
            await until(lambda: back)
            assert [each.name for each in device.gpu_lets] == ["b"]
            assert values(await device.executor("b").run("b", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())


def test_gpu_lets_that_come_while_others_are_made_are_made_as_well(monkeypatch):
    async def run():
        async with device_of() as (device, _, back):
            spec = {"echo": model()}
            await device.prepare(spec, [gpu_let("a")])
            partition, made = devices._partition, []

            async def another_plan_comes(executor, gpu_lets):
                made.append([each.name for each in gpu_lets])
                await partition(executor, gpu_lets)
                if len(made) == 1:
                    await device.prepare(spec, [gpu_let("b")])

            monkeypatch.setattr(devices, "_partition", another_plan_comes)
            device.executor("a").kill()
            await until(lambda: back)
            assert made == [["a"], ["b"]]
            assert values(await device.executor("b").run("b", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())


@pytest.mark.parametrize("order", ["answers", "prepare"])
def test_an_executor_that_has_stopped_is_started_again(monkeypatch, caplog, order):
    async def run():
        async with device_of() as (device, died, back):
            spec = {"echo": model()}
            await device.prepare(spec, [gpu_let("a")])
            await stop(device.executor("a").pid)
            with monkeypatch.context() as soon:
                soon.setattr(devices, "ANSWER_SECONDS", 0.2)
                soon.setattr(devices, "PARTITION_SECONDS", 0.2)
                await (device.answers() if order == "answers" else device.prepare(spec, [gpu_let("b")]))
            assert len(died) == 1
            await device.prepare(spec, [gpu_let("b")])
            await until(lambda: back)
            assert values(await device.executor("b").run("b", "echo", [x(1.0)], 1)) == [1.0]

    asyncio.run(run())
    assert "is killed: it" in caplog.text


def test_an_executor_at_work_has_the_time_of_its_batch(monkeypatch):
    monkeypatch.setattr(devices, "ANSWER_SECONDS", 0.05)

    async def run():
        async with device_of() as (device, died, _):
            await device.prepare({"echo": model()}, [gpu_let("a")])
            executor = device.executor("a")
            await stop(executor.pid)
            batch = executor.run("a", "echo", [x(1.0)], 1)
            answers = asyncio.create_task(device.answers())
            await asyncio.sleep(0.3)
            assert not answers.done()
            os.kill(executor.pid, signal.SIGCONT)
            assert values(await batch) == [1.0]
            await answers
            assert not died

    asyncio.run(run())
