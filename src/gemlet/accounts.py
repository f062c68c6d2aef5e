"""As whose the programs and connections of a uid are counted, where users have turns, or a part of something.

One value for a process, and not handed from one to the next: who asks may be far from who knows users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_account: Callable[[int], int] = int  # the uid itself


def count_users_by(account: Callable[[int], int]) -> None:
    """From now on uids with the same ``account`` are one user, who may have thousands of them (/etc/subuid)."""
    global _account  # noqa: PLW0603
    _account = account


def account_of(uid: int) -> int:
    """The uid as which this one is counted. What it may do goes by its own."""
    return _account(uid)
