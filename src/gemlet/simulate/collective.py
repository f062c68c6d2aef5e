"""Kernels that wait for each other across devices, as an all-reduce of a job's ranks does."""

from __future__ import annotations

from typing import Protocol


class Rank(Protocol):
    """What one of them must be able to do."""

    def met(self, now: int) -> None:
        """All have come to where it waits: its kernel goes on."""


class Ranks:
    """The ranks of one job. The n-th meeting of each is the n-th of all, and none goes on from it before all came."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._here: dict[int, list[Rank]] = {}  # by the number of the meeting

    def arrive(self, rank: Rank, meeting: int, now: int) -> None:
        """The rank's kernel runs on its device and waits for the others'."""
        here = self._here.setdefault(meeting, [])
        here.append(rank)
        if len(here) == self._count:
            del self._here[meeting]
            for each in here:
                each.met(now)
