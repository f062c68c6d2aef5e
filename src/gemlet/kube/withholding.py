"""Shares that are withheld from new containers, and the pods for which they are.

A container of a claim starts by the share's CDI file, so a share is withheld while it has none. The mark in the share's
directory is for the agent after this one: it withholds the share, too, until it has looked at every pod itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.errors import GemletError
from gemlet.kube import cdi
from gemlet.kube.edits import withheld_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BEFORE = ""  # in the place of the pods for which the agent before this one withheld a share


class NotWithheld(GemletError):
    """A share is to be withheld from new containers, and its CDI file cannot be removed or its mark not be made."""


class Withholding:
    """Those of one node. ``shares``: the directory of all shares; ``cdi_directory``: where the runtime looks."""

    def __init__(self, shares: str, cdi_directory: Path, share_ids: Iterable[str]) -> None:
        self._shares = shares
        self._cdi = cdi_directory
        self._pods = {share_id: {_BEFORE} for share_id in share_ids if self.is_marked(share_id)}  # uids, by share

    def __contains__(self, share_id: str) -> bool:
        return share_id in self._pods

    def shares(self) -> set[str]:
        """The ids of all that are to be withheld."""
        return set(self._pods)

    def of(self, pod: str) -> set[str]:
        """Those that are because of the pod with that uid."""
        return {share_id for share_id, pods in self._pods.items() if pod in pods}

    def pods(self) -> set[str]:
        """The uids of all pods for which one is."""
        return set().union(*self._pods.values()) - {_BEFORE}

    def add(self, share_id: str, pod: str) -> None:
        """Withholds a share. Raises `NotWithheld`; it is to be withheld all the same, and `enforce` tries again."""
        self._pods.setdefault(share_id, set()).add(pod)
        self.enforce(share_id)

    def remove(self, share_id: str, pod: str) -> bool:
        """Takes back `add` for one pod. Returns whether it was the last: the share may have its file again."""
        pods = self._pods.get(share_id, set())
        pods.discard(pod)
        return not pods and self.forget(share_id)

    def remove_unseen(self, share_id: str) -> bool:
        """As `remove`, of what the agent before this one withheld."""
        return self.remove(share_id, _BEFORE)

    def forget(self, share_id: str) -> bool:
        """Leaves the share to itself, as when it is closed. Returns whether it was to be withheld."""
        return self._pods.pop(share_id, None) is not None

    def enforce(self, share_id: str) -> None:
        """Removes the share's file, and marks it if it is to be withheld. Raises `NotWithheld`."""
        try:
            try:
                if share_id in self._pods:  # the next agent tries itself what this one could not restore
                    self._mark(share_id).touch()
            finally:  # the file must go all the same: a mark is for the next agent
                cdi.remove(self._cdi, share_id)
        except OSError as error:
            raise NotWithheld(
                f"the share {share_id} cannot be withheld from new containers: {error}",
                hint=f"let the agent write in {self._cdi} and {self._shares} of this node",
            ) from error

    def holds(self, share_id: str) -> bool:
        """Whether no container can start in the share, now and after the next start of an agent."""
        return not cdi.is_there(self._cdi, share_id) and (share_id not in self._pods or self.is_marked(share_id))

    def is_marked(self, share_id: str) -> bool:
        """Whether the next agent would withhold it. True also where that cannot be found out."""
        return cdi.may_be_there(self._mark(share_id))

    def unmark(self, share_id: str) -> None:
        """Raises OSError."""
        self._mark(share_id).unlink(missing_ok=True)

    def _mark(self, share_id: str) -> Path:
        return Path(withheld_mark(self._shares, share_id))


def for_all(action: Callable[[str], None], share_ids: Iterable[str]) -> None:
    """Does it for all of them, and raises the first error afterwards: one that fails keeps no other back."""
    failed: list[NotWithheld | OSError] = []
    for share_id in share_ids:
        try:
            action(share_id)
        except (NotWithheld, OSError) as error:
            failed.append(error)
    if failed:
        raise failed[0]
