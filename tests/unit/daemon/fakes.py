"""Stand-ins for the native server and NVML, as small as the daemon's view of them."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemlet.devices.device import DeviceInfo, DeviceProcess
from gemlet.errors import DeviceError

if TYPE_CHECKING:
    from gemlet.daemon.native import Held

UUID = bytes(range(16))
UUID_TEXT = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class FakeServer:
    """Keeps what it is told; tests add clients with `add_client`."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.devices: dict[bytes, dict[str, Any]] = {}
        self.reserved_on: dict[str, int | None] = {}  # device of each group's minimum
        self.bound: dict[str, list[bytes]] = {}  # devices of shares
        self.clients: dict[str, list[dict[str, Any]]] = {}
        self.makers: dict[str, int] = {}  # of groups that clients made by joining them
        self.used_ns: dict[str, int] = {}
        self.listening: dict[str, tuple[str | None, int]] = {}
        self.process_memory: dict[tuple[bytes, int], int] = {}
        self.confirmed: dict[tuple[bytes, int], int] = {}
        self.running = False
        self.host_memory = 0
        self.events: list[dict[str, Any]] = []
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sockets: list[socket.socket] = []

    def listen(self, path: str, group: str | None = None, mode: int = 0o600) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Path(path).unlink(missing_ok=True)  # as the native server does
        self._sockets.append(listener)
        listener.bind(path)
        listener.listen()
        Path(path).chmod(mode)
        self.listening[path] = (group, mode)

    def unlisten(self, path: str) -> bool:
        if path not in self.listening:
            return False
        del self.listening[path]
        Path(path).unlink()
        return True

    def add_device(self, uuid: bytes, index: int, *, policy: str) -> None:
        self.devices[uuid] = {"index": index, "policy": policy}

    def set_capacity(self, uuid: bytes, size: int | None, max_wait: int | None = None) -> None:
        self.devices[uuid]["capacity"] = size

    def set_accounts(self, ranges) -> None:
        self.accounts = list(ranges)

    def set_host_memory(self, size: int) -> None:
        self.host_memory = size

    def set_group(self, name: str, *, device: int | None = None, **limits: Any) -> None:
        if limits["min"] > limits["max"]:
            raise ValueError("min is above max")
        self.groups[name] = limits
        self.reserved_on[name] = device

    def bind_group(self, name: str, devices: list[bytes]) -> bool:
        self.bound[name] = devices
        return name in self.groups

    def maker(self, name: str) -> int | None:
        return self.makers.get(name) if name not in self.groups else None

    def remove_group(self, name: str) -> bool:
        if self.clients.get(name):
            return False
        self.groups.pop(name, None)
        return True

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False
        for listener in self._sockets:
            listener.close()
        if self._eventfd >= 0:
            os.close(self._eventfd)
            self._eventfd = -1

    def snapshot(self, listed: bool = True) -> dict[str, Any]:
        devices = [
            {
                "uuid": uuid,
                "index": device["index"],
                "policy": device["policy"] or "fair",
                "groups": [self._group(name, limits, listed=listed) for name, limits in self.groups.items()],
            }
            for uuid, device in self.devices.items()
        ]
        return {"devices": devices, "now_ns": time.monotonic_ns(), "denied": 0}

    def _group(self, name: str, limits: dict[str, Any], *, listed: bool) -> dict[str, Any]:
        clients = self.clients.get(name, [])
        return {
            "name": name,
            **{key: limits[key] for key in ("min", "max", "weight", "sm", "priority", "workload")},
            "target": limits["min"],
            "used_ns": self.used_ns.get(name, 0),
            "memory": limits["memory"],
            "resident": limits["resident"],
            "memory_used": sum(client["memory"] for client in clients),
            "untracked": 0,
            "reason": "below its minimum" if clients else "",
            "programs": len(clients),
            "beside_mps": [c["pid"] for c in clients if limits["sm"] < 1 and not c.get("mps")],
            "launches": sum(client["launches"] for client in clients),
            "clients": clients if listed else [],
        }

    def groups_by_pid(self) -> dict[int, str]:
        return {client["pid"]: name for name, clients in self.clients.items() for client in clients}

    def set_memory_of_processes(self, uuid: bytes, processes: list[Held]) -> None:
        for pid, size, _ in processes:
            self.confirmed[uuid, pid] = size or 0
            if size is not None:
                self.process_memory[uuid, pid] = size

    def hand_over(self) -> dict[str, Any]:
        self.running = False
        return {"listeners": [], "ledgers": [], "callers": []}

    def leave(self) -> None:
        self.listening.clear()

    def inherit_listener(self, path: str, fd: int) -> None: ...

    def inherit_ledger(self, image: dict[str, Any]) -> None: ...

    def inherit_caller(self, caller: dict[str, Any]) -> None: ...

    def govern(self) -> None: ...

    def knows_members(self) -> bool:
        return True

    def members(self) -> list[dict[str, Any]]:
        return []

    def eventfd(self) -> int:
        return self._eventfd

    def take_events(self) -> list[dict[str, Any]]:
        taken, self.events = self.events, []
        return taken

    # --- for tests ---

    def add_client(self, group: str, *, pid: int = 4242, memory: int = 0, command: str = "train") -> dict[str, Any]:
        client = {
            "id": len(self.clients) + 1,
            "pid": pid,
            "uid": os.getuid(),
            "command": command,
            "state": "runs",
            "memory": memory,
            "launches": 7,
            "contexts": 1,
            "since_ns": time.monotonic_ns(),
        }
        self.clients.setdefault(group, []).append(client)
        if self.running:
            self.emit(kind="join", group=group, pid=pid, uid=client["uid"], command=command)
        return client

    def emit(self, **event: Any) -> None:
        self.events.append(event)
        os.eventfd_write(self._eventfd, 1)


class FakeInventory:
    """One device; ``held`` is what NVML says each process holds. ``broken`` makes the driver not answer."""

    processes: tuple[DeviceProcess, ...] = ()  # what NVML lists on the device

    def __init__(self) -> None:
        self.held: dict[int, int | None] = {}
        self.broken = False

    def devices(self) -> list[DeviceInfo]:
        if self.broken:
            raise DeviceError("NVML does not answer")
        return [
            DeviceInfo(
                uuid=UUID_TEXT,
                index=0,
                name="Fake H200",
                memory_total=150 << 30,
                memory_used=1 << 30,
                utilization=0.25,
                processes=self.processes,
            )
        ]

    def process_memory(self, uuid: str) -> dict[int, int | None]:
        if self.broken:
            raise DeviceError("NVML does not answer")
        return dict(self.held)
