"""The fleet as the controller sees it; the server implements it, and so do tests and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.plan.model import Plan


class Living(Protocol):
    """A device with an executor that lives."""

    @property
    def index(self) -> int:
        """That of ``Gpu.index`` in plans; it stays the device's own."""
        ...


class ControlledFleet(Protocol):
    """Devices with executors, and the dispatcher before them."""

    def counts(self) -> Mapping[str, int]:
        """Requests that arrived since the last call, by model."""
        ...

    async def apply(self, plan: Plan) -> None:
        """Loads, partitions, lets the dispatcher adopt the plan, unloads: no request is dropped by it.

        Raises GemletError where a device cannot do it; the plan that was in force stays.
        """
        ...

    def devices(self) -> Sequence[Living]:
        """Those alive: fewer when an executor dies, more when it is back."""
        ...

    def plan(self) -> Plan:
        """The plan in force."""
        ...


class Backlog(Protocol):
    """Optional: how many requests wait in the queue of each model."""

    def __call__(self) -> Mapping[str, int]: ...


class Scaler(Protocol):
    """Optional: starts and stops executors, so that the number of devices follows the load."""

    async def scale(self, devices: int) -> None:
        """So many devices are wanted from now on; returns when that is under way, not when it is done."""
        ...
