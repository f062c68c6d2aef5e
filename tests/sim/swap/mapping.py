"""How a program of tests/sim/swap takes memory by cuMemCreate and gives it back."""

from __future__ import annotations

from typing import Any

from tests.sim.robustness.hurt_machine import eventually

MIB = 1 << 20
READ, WRITE = 1, 3
FILE = 1  # may be exported as a file descriptor


def mapped(program: Any, number: int, mib: int, *, area: int | None = None, types: int = 0) -> None:
    """Handle ``number``, mapped in an area of its own with access, as piece of the same number."""
    area = number if area is None else area
    program.done("vreserve", area, mib * MIB)
    program.done("vcreate", number, mib * MIB, types)
    program.done("vmap", area, 0, mib * MIB, number)
    program.done("vaccess", area, 0, mib * MIB, WRITE)
    program.done("vpiece", area, 0, mib * MIB, number)


def gone(program: Any, number: int, mib: int, area: int | None = None) -> None:
    area = number if area is None else area
    program.done("vforget", number)
    program.done("vunmap", area, 0, mib * MIB)
    program.done("vrelease", number)
    program.done("vunreserve", area)


def fill_device(s: Any, mib: int) -> Any:
    """Another program that needs so much of it, and has it."""
    other = s.start("other")
    other.done("alloc", 0, mib * MIB)
    other.done("fill", 0, 99)
    return other


def nothing_is_left(s: Any, program: Any) -> None:
    eventually(lambda: s.memory(program)["bytes"] == s.memory(program)["resident"] == 0)


def moved_out(s: Any, mib: int, *, seed: int, beside: int) -> tuple[Any, Any]:
    """A program whose piece 0 has left the device, at least in part, and the other one that took its place."""
    a = s.start("a")
    mapped(a, 0, mib)
    a.done("fill", 0, seed)
    b = fill_device(s, beside)
    assert s.away(a) > 0
    return a, b


def all_is_gone(s: Any, program: Any, mib: int) -> None:
    """Its piece 0 was all that it had."""
    gone(program, 0, mib)
    nothing_is_left(s, program)
