"""Daemons that are played: sockets of one thread, each with the API of a host that says a status of its own."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from tests.unit.monitor.status_example import example

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SILENT = "silent"  # accepts and never answers


def document(number: int) -> dict[str, object]:
    """A status in which the device is ``number`` per cent busy."""
    status = example()
    device = msgspec.structs.replace(status.devices[0], utilization=number / 100)
    built: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(status, devices=(device,)))
    return built


def answer(op: str, number: int) -> dict[str, object]:
    """What a host says."""
    if op == "status":
        return document(number)
    if op == "recorded":
        return {"schema": 1, "simulated": True, "step_s": 1, "time": [1, 2], "series": [], "kept": None}
    return {}


class Played:
    """``asked``: operations by host."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.asked: dict[str, list[str]] = {}
        self._open = contextlib.ExitStack()
        self._selector = self._open.enter_context(contextlib.closing(selectors.DefaultSelector()))
        self._end, self._ended = (self._open.enter_context(one) for one in socket.socketpair())
        self._selector.register(self._ended, selectors.EVENT_READ, None)
        for number, name in enumerate(names):
            (folder / name).mkdir(mode=0o700)
            listener = self._open.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(folder / name / "api.sock"))
            listener.listen()
            self._selector.register(listener, selectors.EVENT_READ, (name, number % 100, None))

    def run(self) -> None:
        with self._open:
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        return
                    self._serve(key.fileobj, *key.data)  # type: ignore[arg-type]

    def end(self) -> None:
        self._end.send(b"x")

    def _serve(self, one: socket.socket, name: str, number: int, begun: bytes | None) -> None:
        if begun is None:
            made = self._open.enter_context(one.accept()[0])
            self._selector.register(made, selectors.EVENT_READ, (name, number, b""))
            return
        data = one.recv(65536)
        if not data:
            self._selector.unregister(one)
            one.close()
            return
        *lines, rest = (begun + data).split(b"\n")
        self._selector.modify(one, selectors.EVENT_READ, (name, number, rest))
        for line in lines:
            op = json.loads(line)["op"]
            self.asked.setdefault(name, []).append(op)
            if not name.startswith(SILENT):
                with contextlib.suppress(OSError):
                    one.sendall(json.dumps({"ok": True, "data": answer(op, number)}).encode() + b"\n")


@contextmanager
def played(folder: Path, names: list[str]) -> Iterator[Played]:
    """Hosts of these names, each in a directory of its name below ``folder``."""
    daemons = Played(folder, names)
    thread = threading.Thread(target=daemons.run)
    thread.start()
    yield daemons
    daemons.end()
    thread.join()
