"""How long outputs of a batch stay where they are: until the next turn of the event loop, or as somebody keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing() -> None:
    pass


class Loan:
    """``release`` is called once, when it has ended and nobody keeps it."""

    __slots__ = ("_count", "_release")

    def __init__(self, release: Callable[[], None] = _nothing) -> None:
        self._release = release
        self._count = 1

    def keep(self) -> Kept:
        """Makes it last longer; to be called before it ends."""
        self._count += 1
        return Kept(self)

    def end(self) -> None:
        self._count -= 1
        if not self._count:
            self._release()


class Kept:
    """A loan until end(), or the end of this object: a task that never ran has ended nothing."""

    __slots__ = ("_loan",)

    def __init__(self, loan: Loan) -> None:
        self._loan: Loan | None = loan

    def __del__(self) -> None:
        self.end()

    def end(self) -> None:
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.end()


FREE = Loan()  # of what is nobody's memory
