"""Tells the server what the driver holds for each client: contexts, modules and local memory included.

The hook counts allocations exactly; what else a process costs only NVML knows. The server books the difference to the
process's group, so that a memory limit covers everything the process takes.

A client's claim may push the memory of others off the device, so the server stops believing it after a while unless the
driver confirms it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.daemon.native import Server, Snapshot, uuid_text

if TYPE_CHECKING:
    from gemlet.daemon.inventory import Inventory


class Accounting:
    """Asks the driver (blocking) and tells the server."""

    def __init__(self, server: Server, inventory: Inventory) -> None:
        self._server = server
        self._inventory = inventory

    def held(self, snapshot: Snapshot) -> dict[bytes, dict[int, int | None]]:
        """Bytes each process holds, on the devices that have or await clients; None: the driver hides it. Blocks.

        Raises `DeviceError`.
        """
        busy = [
            device.uuid
            for device in snapshot.devices
            if any(group.programs or group.expected for group in device.groups)
        ]
        return {uuid: self._inventory.process_memory(uuid_text(uuid)) for uuid in busy}

    def book(
        self, before: Snapshot, snapshot: Snapshot, held: dict[bytes, dict[int, int | None]], *, lists_all: bool = False
    ) -> None:
        """Tells the server of its clients. ``before`` was taken before the driver was asked, ``snapshot`` after.

        A process that allocated or freed in between is left for the next time: the server compares with ``before``. A
        process that NVML does not list has no context yet, or its pid means nothing here: it is left as it is.
        ``lists_all``: the latter cannot be, so what such a process claims to hold is not there.
        """
        seen = {
            (device.uuid, client.pid): (client.memory, client.contexts, client.movable.moved if client.movable else 0)
            for device in before.devices
            for group in device.groups
            for client in group.clients
        } | {
            (device.uuid, process.pid): (process.memory, process.contexts, 0)
            for device in before.devices
            for group in device.groups
            for process in group.awaited
        }
        for device in snapshot.devices:
            by_pid = held.get(device.uuid, {})
            awaited = {process.pid for group in device.groups for process in group.awaited}
            clients = {client.pid for group in device.groups for client in group.clients}
            self._server.set_memory_of_processes(  # in one call: each waits for the server
                device.uuid,
                [
                    (pid, by_pid.get(pid), seen.get((device.uuid, pid)))
                    for pid in awaited | clients
                    if by_pid.get(pid) is not None or (lists_all and pid not in by_pid)
                ],
            )
