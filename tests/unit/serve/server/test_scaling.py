"""Devices that rest and come back, with real executor processes that do nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gemlet.serve.dispatch.engine import Engine
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.execution.device import Device
from gemlet.serve.execution.executor import Executor, ExecutorFailed
from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet
from gemlet.serve.server.fleet import Fleet
from gemlet.serve.server.scaling import DeviceScaler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GPU_LET = GpuLet(name="gpu0/let0", sm=1.0, models={})


def with_devices(count: int, act: Callable[[list[Device], asyncio.TaskGroup], Awaitable[None]]) -> list[str]:
    """Runs ``act`` with this many started devices; returns those that were reported dead."""
    died: list[str] = []

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            devices = [
                Device(
                    index, "noop", BackendOptions(), tasks,
                    on_died=lambda executor: died.append(executor.name), on_back=lambda _new, _old: None,
                )
                for index in range(count)
            ]  # fmt: skip
            try:
                await asyncio.gather(*(device.start() for device in devices))
                await act(devices, tasks)
            finally:
                await asyncio.gather(*(device.close() for device in devices))

    asyncio.run(run())
    return died


def test_a_device_rests_and_comes_back() -> None:
    async def act(devices: list[Device], _tasks: asyncio.TaskGroup) -> None:
        (device,) = devices
        first = device.pids
        await device.prepare({}, [GPU_LET])
        await device.park()
        assert (device.alive, device.pids) == (False, [])
        await device.prepare({}, [])  # a plan without it is nothing to it
        with pytest.raises(ExecutorFailed, match="device 0 rests"):
            await device.prepare({}, [GPU_LET])
        await device.wake()
        assert device.alive
        assert device.pids != first
        await device.prepare({}, [GPU_LET])

    assert with_devices(1, act) == []  # a requested end does not count as a death


def test_devices_follow_the_request_but_those_in_use_stay() -> None:
    async def act(devices: list[Device], tasks: asyncio.TaskGroup) -> None:
        fleet = Fleet(Engine(drop=True), devices)
        scaler = DeviceScaler(fleet, tasks)
        gpu_let = PlannedGpuLet(sm=1.0, duty_ms=1.0, occupancy=1.0, tasks=())
        used = Gpu(index=2, memory_mib=0.0, gpu_lets=(gpu_let,))
        await fleet.apply(Plan(policy="x", device="x", origin="modelled", gpus=(used,), demands=()))

        async def scaled(count: int) -> list[int]:
            await scaler.scale(count)
            async with asyncio.timeout(60):
                while sum(not device.parked for device in devices) != max(1, count):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return [device.index for device in fleet.devices()]

        assert await scaled(1) == [2]
        assert await scaled(2) == [0, 2]
        assert await scaled(3) == [0, 1, 2]
        assert await scaled(1) == [2]

    with_devices(3, act)


def test_a_device_that_rests_takes_the_place_of_one_that_does_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ExecutorFailed("no such device")

    async def act(devices: list[Device], tasks: asyncio.TaskGroup) -> None:
        fleet = Fleet(Engine(drop=True), devices)
        scaler = DeviceScaler(fleet, tasks)
        gpu_let = PlannedGpuLet(sm=1.0, duty_ms=1.0, occupancy=1.0, tasks=())
        used = Gpu(index=0, memory_mib=0.0, gpu_lets=(gpu_let,))
        await fleet.apply(Plan(policy="x", device="x", origin="modelled", gpus=(used,), demands=()))
        async with asyncio.timeout(60):
            await scaler.scale(1)
            while not devices[1].parked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Device, "_restored", fail)
            devices[0].executor("").kill()
            while devices[0].alive:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await scaler.scale(1)
            while devices[1].parked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [device.index for device in fleet.devices()] == [1]

    with_devices(2, act)


def test_a_device_that_cannot_be_ended_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(devices: list[Device], tasks: asyncio.TaskGroup) -> None:
        close = Executor.close

        async def fails(executor: Executor, patience_s: float = 0.0) -> None:
            await close(executor, patience_s)
            if executor.name.endswith("1"):
                raise RuntimeError("the cluster is gone")

        with monkeypatch.context() as failing:
            failing.setattr(Executor, "close", fails)
            await DeviceScaler(Fleet(Engine(), devices), tasks).scale(0)
            async with asyncio.timeout(60):
                while not all(device.parked for device in devices) or "ended" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with_devices(3, act)
    assert "device 1 cannot be ended: the cluster is gone" in caplog.text
