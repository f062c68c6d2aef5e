"""A scene around one arbiter: clients in milliseconds, what they were last told, and a clock that ticks on time."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000


def _native() -> Any:
    """gemlet._native, from GEMLET_NATIVE_DIR if that is set."""
    folder = os.environ.get("GEMLET_NATIVE_DIR")
    if folder and "gemlet._native" not in sys.modules:
        file = next(Path(folder).glob("_native*.so"))
        spec = importlib.util.spec_from_file_location("gemlet._native", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["gemlet._native"] = module
    return importlib.import_module("gemlet._native")


native = _native()


class Scene:
    """Times are milliseconds. ``holders`` are the clients that were granted the token and have not stopped."""

    def __init__(self, policy: str = "fair", **parameters: float) -> None:
        """Everybody takes turns, unless ``open`` is among the parameters."""
        self.arbiter = native.Arbiter(policy, **{"open": False, **parameters})
        self.now = 0
        self.groups: dict[str, int] = {}
        self.holders: dict[int, dict[str, Any]] = {}
        self.waiting: set[int] = set()
        self.parked: set[int] = set()
        self.alarms: set[int] = set()  # of the parked clients, those that raise it when they take their tokens
        self.log: list[tuple[float, str, int]] = []

    @property
    def ms(self) -> float:
        return self.now / MS

    def group(self, name: str, **spec: Any) -> None:
        self.groups[name] = self.arbiter.set_group(name, self.now, **spec)
        self._act()

    def client(self, number: int, group: str, *, wants: bool = False, mps: bool = False) -> None:
        self.arbiter.add_client(number, self.groups[group], self.now, mps=mps)
        self._act()
        if wants:
            self.request(number)

    def request(self, client: int) -> None:
        self.parked.discard(client)
        self.waiting.add(client)
        self.arbiter.request(client, self.now)
        self._act()

    def took(self, client: int) -> None:
        self.parked.discard(client)
        self.holders[client] = {"granted": self.now}
        self.arbiter.took(client, self.now)
        self._act()

    def stop(
        self,
        client: int,
        reason: str = "deadline",
        tail: float = 0.0,
        *,
        drained: bool = True,
        unused: bool = False,
    ) -> None:
        self.holders.pop(client, None)
        self.arbiter.stopped(client, reason, round(tail * MS), self.now, unused=unused)
        if drained and tail == 0:
            self.arbiter.drained(client, self.now, self.now)
        self._act()

    def drain(self, client: int, at: float | None = None) -> None:
        self.arbiter.drained(client, self.now if at is None else round(at * MS), self.now)
        self._act()

    def leave(self, client: int) -> None:
        self.holders.pop(client, None)
        self.parked.discard(client)
        self.waiting.discard(client)
        self.arbiter.remove_client(client, self.now)
        self._act()

    def to(self, ms: float) -> None:
        """On to ``ms``, ticking whenever the arbiter asks for it."""
        self.to_ns(round(ms * MS))

    def to_ns(self, end: int) -> None:
        most = 1000 + (end - self.now) // 5_000
        while (tick := self.arbiter.next_event()) <= end:
            assert tick > self.now, "a tick that does not get on"
            most -= 1
            assert most > 0, "ticks all the time"
            self.now = tick
            self.arbiter.tick(tick)
            self._act()
        self.now = end

    def progress(
        self, client: int, work: float, *, busy: float = 1.0, awaited: float = 1.0, launches: int | None = None
    ) -> None:
        """It has done ``work`` ms so far, and sampled its queues five times in each of them."""
        samples = round(work * 5)
        counters = (samples, round(samples * busy), round(samples * busy * awaited))
        self.arbiter.progress(client, round(work * MS), samples if launches is None else launches, *counters)

    def usage(self, name: str) -> dict[str, Any]:
        return next(dict(row) for row in self.arbiter.usage(self.now) if row["name"] == name)

    def used(self, name: str) -> float:
        """Milliseconds charged."""
        return float(self.usage(name)["used"]) / MS

    def deadline(self, client: int) -> float | None:
        """In milliseconds; None for no deadline."""
        deadline = self.holders[client]["deadline"]
        return None if deadline == native.NEVER else deadline / MS

    def _act(self) -> None:
        for kind, client, deadline, window, idle, idle_most, poll, _, shared, alarm in self.arbiter.take_actions():
            self.log.append((self.ms, kind, client))
            if kind == "grant":
                self.waiting.discard(client)
            if kind in {"grant", "update", "revoke"}:
                holder = self.holders.setdefault(client, {"granted": self.now})
                holder.update(
                    deadline=deadline,
                    window=window,
                    idle=idle,
                    idle_most=idle_most,
                    poll=poll,
                    shared=shared,
                    revoked=kind == "revoke",
                )
            elif kind == "park":
                self.parked.add(client)
                (self.alarms.add if alarm else self.alarms.discard)(client)
            elif kind == "unpark":
                self.parked.discard(client)


@pytest.fixture
def scene() -> Callable[..., Scene]:
    return Scene


@pytest.fixture(scope="session")
def scene_class() -> Callable[..., Scene]:
    """The same for property tests, which share one fixture among many examples."""
    return Scene
