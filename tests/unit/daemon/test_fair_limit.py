from __future__ import annotations

import pytest

from gemlet.daemon.fair_limit import may_take_another


@pytest.mark.parametrize(
    ("taken", "theirs", "administers", "room"),
    [
        (0, 0, False, True),
        (49, 49, False, False),
        (44, 44, False, True),
        (45, 45, False, False),  # 55 are free, and 10 of them are kept
        (89, 0, False, True),
        (90, 0, False, False),
        (99, 99, True, True),
        (100, 0, True, False),
    ],
)
def test_a_user_has_no_more_than_is_left_to_others(taken, theirs, administers, room):
    assert may_take_another(100, taken=taken, theirs=theirs, kept=10, administers=administers) is room
