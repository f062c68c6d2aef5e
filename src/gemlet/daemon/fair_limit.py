"""Who may have another of a limited number of places, as native/server/fair_limit.hpp decides for programs. Pure."""

from __future__ import annotations


def may_take_another(places: int, *, taken: int, theirs: int, kept: int, administers: bool) -> bool:
    """Whether a user who has ``theirs`` of the ``taken`` places may have another one.

    Only while more are free than the user has, ``kept`` for administrators not counted; an administrator while one is.
    """
    free = places - taken
    return free > (0 if administers else theirs + kept)
