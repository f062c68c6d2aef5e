"""A scene around one Residency: clients that obey their orders at once, late or never, and a clock in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

native = pytest.importorskip("gemlet._native", reason="the native module is not built")
MS = 1_000_000
GIB = 1 << 30


class Scene:
    """``mapped`` is what each client really has on the device; it changes only by obey()."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.residency = native.Residency(**options)
        self.now = 0
        self.movable: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.fixed: dict[int, int] = {}
        self.orders: dict[int, tuple[int, int]] = {}  # allowed, number
        self.said: dict[int, int] = {}  # number of the order that it last said it follows
        self.stopped: set[int] = set()  # these say nothing
        self.moved = 0

    def client(self, number: int, group: int = 0, bytes_: int = 0) -> str:
        self.residency.add(number, group, self.now)
        self.movable[number] = self.mapped[number] = self.fixed[number] = 0
        self.orders[number] = (0, 0)
        self.said[number] = 0
        return self.admit(number, bytes_) if bytes_ else ""

    def admit(self, number: int, bytes_: int) -> str:
        refusal = self.residency.admit(number, bytes_, self.now)
        if not refusal:
            # A free is done before it is reported.
            self.movable[number] = bytes_
            self.mapped[number] = min(self.mapped[number], bytes_)
        self.collect()
        return str(refusal)

    def collect(self) -> None:
        while orders := self.residency.take_orders():
            for number, allowed, order in orders:
                before, last = self.orders[number]
                assert order == last + 1
                self.orders[number] = (allowed, order)
                # Who is asked whether it is there says so at once, also one that is slow to obey.
                if allowed == before and number not in self.stopped and self.said[number] == last:
                    self.say(number)

    def say(self, number: int) -> None:
        order = self.said[number] = self.orders[number][1]
        complete = self.mapped[number] == self.movable[number]
        self.residency.report(number, self.mapped[number], order, complete, self.now)

    def obey(self, number: int, most: int | None = None) -> None:
        """The client moves up to ``most`` bytes towards its order and says so."""
        allowed, _ = self.orders[number]
        wanted = min(allowed, self.movable[number])
        step = wanted - self.mapped[number]
        if most is not None:
            step = max(-most, min(most, step))
        self.mapped[number] += step
        self.moved += abs(step)
        self.say(number)
        self.collect()

    def leave(self, number: int) -> None:
        self.residency.remove(number, self.now)
        for table in (self.movable, self.mapped, self.fixed, self.orders, self.said):
            table.pop(number)
        self.collect()

    def settle(self) -> None:
        """Everybody obeys until nothing changes."""
        for _ in range(100):
            before = (dict(self.mapped), dict(self.orders))
            for number in sorted(self.mapped.keys() - self.stopped):
                self.obey(number)
            if before == (self.mapped, self.orders):
                return
        raise AssertionError("it never settles")

    def to(self, ms: float, *, obey: bool = True) -> None:
        end = round(ms * MS)
        if obey:
            self.settle()
        while (tick := self.residency.next_event()) <= end:
            assert tick > self.now, "a tick that does not get on"
            self.now = tick
            self.residency.tick(tick)
            self.collect()
            if obey:
                self.settle()
        self.now = end

    def request(self, number: int) -> None:
        self.residency.request(number, self.now)
        self.collect()

    def idle(self, number: int) -> None:
        self.residency.idle(number, self.now)
        self.collect()

    def resident(self) -> set[int]:
        return {number for number in self.mapped if self.residency.resident(number)}

    def usage(self, number: int) -> dict[str, Any]:
        return next(dict(u) for u in self.residency.usage(self.now) if u["client"] == number)


@pytest.fixture(scope="session")
def scene() -> Callable[..., Scene]:
    return Scene
