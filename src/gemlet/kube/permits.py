"""Which pods may start in which shares of claims.

DIRECTORY/permits/SHARE/POD    by the pod's uid: `MAY_START`, or why its containers do not

The kubelet has a claim prepared for the first pod that uses it, and tells nobody of the next ones. So the runtime runs
gemlet-start-check (native/start_check) before each container of a share starts: without such a file, or with one that
says something else, the container does not start. Where the agent is down, slow or cannot write, nothing starts that
it has not looked at.

That program waits for ten seconds where there is no file yet, and meanwhile the kubelet gets no measurements of the
node from containerd. So the directory is there as long as the share (book.py), and of a pod that has ended there is a
file that says so for a while.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

from gemlet import whole_file
from gemlet.errors import GemletError
from gemlet.kube.pod_events import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MAY_START = "may start\n"  # kMayStart in native/start_check/start_check.cpp
_ENDED = "gemlet: the pod has ended\n"
ENDED_SECONDS = 180.0  # for which a container of it may still be about to start


class NotWritten(GemletError):
    """What was decided of a pod is not in its file."""


class Permits:
    """Those of one node, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._said: dict[tuple[str, str], str] = {}  # what a file is to say, by share and pod
        self._ended: dict[tuple[str, str], float] = {}  # when, by the same

    def say(self, share_id: str, pod: str, refusal: str | None) -> None:
        """Lets the pod with that uid start in a share, or with a ``refusal`` not. What cannot be written now, `enforce`
        tries again."""
        self._said[share_id, pod] = MAY_START if refusal is None else f"{refusal[:MAX_TEXT]}\n"
        self._ended.pop((share_id, pod), None)
        with contextlib.suppress(OSError):
            self._write(share_id, pod)

    def take_back(self, pod: str, *, but: Collection[str] = ()) -> None:
        """Forgets the pod with that uid in all shares ``but`` these."""
        for share_id in self.shares_of(pod) - set(but):
            del self._said[share_id, pod]
            with contextlib.suppress(OSError):  # nobody else will ever have that uid
                self._file(share_id, pod).unlink(missing_ok=True)

    def end(self, pod: str, share_id: str | None = None) -> None:
        """The pod with that uid has ended, or been deleted: a container of it that is about to start does not wait.

        ``share_id``: a share that it used, where nothing was said of it before.
        """
        used = self.shares_of(pod) | ({share_id} if share_id is not None else set())
        with contextlib.suppress(OSError):  # by an agent before this one, too
            used |= {file.parent.name for file in self._directory.glob(f"*/{pod}")}
        for each in used:
            self._said.pop((each, pod), None)
            if (each, pod) not in self._ended:
                self._ended[each, pod] = time.monotonic()
                with contextlib.suppress(OSError):
                    whole_file.write(self._file(each, pod), _ENDED.encode())

    def pods(self) -> set[str]:
        """The uids of all pods of which something was said, also by an agent before this one."""
        pods = {pod for _, pod in self._said}
        with contextlib.suppress(OSError):
            pods |= {file.name for file in self._directory.glob("*/[!.]*")}
        return pods

    def said(self, share_id: str, pod: str) -> bool:
        """Whether something was said to the pod with that uid of a share."""
        return (share_id, pod) in self._said

    def shares_of(self, pod: str) -> set[str]:
        """The shares of which something was said to the pod with that uid."""
        return {share_id for share_id, uid in self._said if uid == pod}

    def refused(self) -> set[str]:
        """The uids of the pods that may not start in a share of theirs."""
        return {pod for (_, pod), text in self._said.items() if text != MAY_START}

    def left_open(self) -> set[str]:
        """The shares in which a pod could start that may not, because the file that lets it cannot be removed."""
        return {
            share_id
            for (share_id, pod), text in self._said.items()
            if text != MAY_START and _read(self._file(share_id, pod)) == MAY_START
        }

    def enforce(self, shares: Collection[str]) -> None:
        """Writes what the files are to say and do not, and removes those of all but these ``shares``. Raises
        `NotWritten` if one cannot be written, when all others are."""
        failed = None
        old = time.monotonic() - ENDED_SECONDS
        for share_id, pod in [key for key, since in self._ended.items() if since <= old]:
            del self._ended[share_id, pod]
            with contextlib.suppress(OSError):
                self._file(share_id, pod).unlink(missing_ok=True)
        self._ended = {key: since for key, since in self._ended.items() if key[0] in shares}
        self._said = {key: text for key, text in self._said.items() if key[0] in shares}
        for share_id, pod in self._said:
            try:
                self._write(share_id, pod)
            except OSError as error:
                failed = error
        with contextlib.suppress(OSError):
            for directory in self._directory.iterdir():
                if directory.name not in shares:
                    shutil.rmtree(directory, ignore_errors=True)
        if failed is not None:
            raise NotWritten(
                f"which pods may start in their shares cannot be written: {failed}",
                hint=f"let the agent write in {self._directory} of this node",
            ) from failed

    def _write(self, share_id: str, pod: str) -> None:
        file, text = self._file(share_id, pod), self._said[share_id, pod]
        if _read(file) == text:
            return
        file.unlink(missing_ok=True)  # a full disk keeps no pod from being refused
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole_file.write(file, text.encode())

    def _file(self, share_id: str, pod: str) -> Path:
        return self._directory / share_id / pod


def refusals(directory: Path, share_id: str) -> dict[str, str]:
    """Why pods may not start in a share, by uid, as their files say."""
    found = {file.name: _read(file) for file in (directory / share_id).glob("[!.]*")}
    return {pod: text.strip() for pod, text in found.items() if text not in (None, MAY_START, _ENDED)}


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None
