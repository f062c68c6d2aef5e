"""What a client says that it had before this daemon does not cost others more than an admission could have."""

from __future__ import annotations

GIB = 1 << 30
ABSURD = 1 << 60

Make = "Callable[..., Any]"


def test_an_absurd_claim_leaves_others_their_room_on_the_host(scene: Make) -> None:
    s = scene(capacity=10 * GIB, host=16 * GIB)
    s.client(0)
    s.residency.adopt(0, ABSURD, 0, s.now)
    assert s.residency.host_promised() <= 16 * GIB
    assert s.client(1, bytes_=6 * GIB) == ""
    assert s.residency.host_promised() <= 16 * GIB


def test_a_claim_is_promised_no_more_of_the_host_than_there_is(scene: Make) -> None:
    s = scene(capacity=10 * GIB, host=2 * GIB)
    assert s.client(0, bytes_=10 * GIB) == ""
    s.client(1)
    s.residency.adopt(1, 9 * GIB, 0, s.now)
    assert s.residency.host_promised() <= 2 * GIB


def test_an_absurd_claim_does_not_refuse_others_what_cannot_move(scene: Make) -> None:
    s = scene(capacity=10 * GIB)
    s.client(0)
    s.client(1)
    s.residency.adopt(0, ABSURD, 0, s.now)
    assert s.residency.fits_fixed(1, 0)


def test_one_that_never_fits_does_not_hold_up_the_queue(scene: Make) -> None:
    s = scene(capacity=10 * GIB, idle=50 * 1_000_000)
    s.client(0)
    s.residency.adopt(0, ABSURD, 0, s.now)
    s.movable[0] = ABSURD
    s.request(0)
    for number in (1, 2):
        assert s.client(number, bytes_=8 * GIB) == ""
        s.request(number)
    seen = set()
    for _ in range(4):
        s.settle()
        seen |= s.resident()
        s.to(s.residency.next_event() / 1_000_000)
    assert seen == {1, 2}


def test_what_was_really_there_is_promised_as_before(scene: Make) -> None:
    """A daemon that comes back finds what the one before it granted."""
    before, after = scene(capacity=10 * GIB, host=24 * GIB), scene(capacity=10 * GIB, host=24 * GIB)
    for number, size in ((0, 8), (1, 6), (2, 4)):
        assert before.client(number, bytes_=size * GIB) == ""
        after.client(number)
        after.residency.adopt(number, size * GIB, 0, after.now)
    assert after.residency.host_promised() == before.residency.host_promised() > 0
    assert [after.usage(n)["host"] for n in range(3)] == [before.usage(n)["host"] for n in range(3)]


def test_one_that_is_expected_keeps_its_place_until_it_comes(scene: Make) -> None:
    """A daemon that takes over knows both before either comes, and gives neither the other's room."""
    s = scene(capacity=10 * GIB)
    s.residency.expect(100, 0, 0, 8 * GIB, 2 * GIB, s.now)
    s.residency.expect(101, 0, 0, 8 * GIB, 8 * GIB, s.now)
    for before, number, mapped in ((100, 0, 2), (101, 1, 8)):
        s.movable[number], s.mapped[number] = 8 * GIB, mapped * GIB
        s.residency.come_back(before, number, 0, s.now)
        for client, allowed, _ in s.residency.take_orders():
            assert client != 0 or allowed <= 2 * GIB
        assert s.residency.held() <= 10 * GIB
    assert s.resident() == {1}
