"""Of which groups the recorded history has some."""

from __future__ import annotations

from gemlet.daemon.history_room import HOUR, MOST, HistoryRoom

GPU = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def groups(*names):
    return {(GPU, name): (0.5,) for name in names}


def test_who_makes_group_after_group_is_recorded_with_so_many_an_hour():
    room = HistoryRoom(lambda key: key[1].partition("-")[0])
    kept = [room.kept(groups(f"a-{number}", "b-1"), number / 10) for number in range(2 * MOST)]
    assert sum((GPU, f"a-{number}") in each for number, each in enumerate(kept)) == MOST
    assert all((GPU, "b-1") in each for each in kept)
    assert (GPU, "a-0") in room.kept(groups("a-0"), MOST)  # one that goes on is recorded on
    assert (GPU, "a-new") not in room.kept(groups("a-new"), MOST)
    assert (GPU, "a-new") in room.kept(groups("a-new"), MOST + HOUR)


def test_nothing_is_kept_of_groups_that_were_not_seen_for_an_hour():
    room = HistoryRoom(lambda key: key)
    for number in range(100):
        room.kept(groups(str(number)), number * HOUR)
    assert len(room._seen) == 1
