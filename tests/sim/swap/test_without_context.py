"""Memory of cuMemCreate belongs to no context: calls about it come while none is current, or there is none at all."""

from __future__ import annotations

from tests.sim.swap.mapping import MIB, WRITE, all_is_gone, mapped, moved_out, nothing_is_left

Make = "Callable[..., Any]"


def test_what_is_away_is_mapped_elsewhere_meanwhile(swapping: Make) -> None:
    """Without one nothing comes back, so the call that waited for it, before another was made, waited for ever."""
    s = swapping(100)
    a, b = moved_out(s, 80, seed=6, beside=60)
    a.done("destroy")
    a.done("vreserve", 1, 80 * MIB)
    a.done("vmap", 1, 0, 80 * MIB, 0)
    a.done("vaccess", 1, 0, 80 * MIB, WRITE)
    a.done("vaccess", 0, 0, 80 * MIB, WRITE)
    assert s.away(a) > 0
    a.done("device", 0)
    a.done("all")
    a.done("vpiece", 1, 0, 80 * MIB, 1)
    assert a.number("peek", 1, 1000) == a.number("peek", 0, 1000)
    b.done("all")
    a.done("vforget", 1)
    a.done("vunmap", 1, 0, 80 * MIB)
    all_is_gone(s, a, 80)


def test_a_context_that_no_thread_had_as_its_own_will_do(swapping: Make) -> None:
    """The program had made its memory before it made a context current, and kept it on the device for ever."""
    s = swapping(100)
    a, b = s.start("a"), s.start("b")
    a.done("vcurrent", 0)
    mapped(a, 0, 80)
    b.done("alloc", 0, 80 * MIB)
    b.done("fill", 0, 1)
    assert s.away(a) > 0
    a.done("vcurrent", 1)
    a.done("fill", 0, 2)
    b.done("all")
    a.done("all")
    all_is_gone(s, a, 80)


def test_what_is_not_all_mapped_is_not_unmapped(swapping: Make) -> None:
    """The driver refuses it; the hook had taken the first part away by then, and what was in it."""
    s = swapping(100)
    a = s.start("a")
    a.done("vreserve", 0, 64 * MIB)
    a.done("vcreate", 0, 20 * MIB)
    a.done("vmap", 0, 0, 20 * MIB, 0)
    a.done("vaccess", 0, 0, 20 * MIB, WRITE)
    a.done("vrelease", 0)
    a.done("vpiece", 0, 0, 20 * MIB, 0)
    a.done("fill", 0, 3)
    assert a.number("vunmap", 0, 0, 64 * MIB) == 1
    assert a.number("vunmap", 0, 0, 2**64 - 2 * MIB) == 1
    a.done("all")
    a.done("vforget", 0)
    a.done("vunmap", 0, 0, 20 * MIB)
    nothing_is_left(s, a)
    a.done("vunreserve", 0)
