"""Whether this machine's processors had time for the demo: how long its programs waited for one.

Simulated kernels take modelled time, but the programs run on this machine. The kernel counts for each thread how long
it was ready and had to wait (/proc/PID/task/TID/schedstat). The load average would describe the minute before, which
the build of gemlet may have filled.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BUSY = 0.1  # of the programs' time: about where errors of shares begin to show


class Waits:
    """Nanoseconds that threads waited for a processor, by thread; ``look`` at them before they end."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._first: dict[Path, int] = {}
        self._last: dict[Path, int] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Reads the counters of all threads of these processes. A kernel without them leaves nothing known."""
        for pid in pids:
            for file in self._proc.glob(f"{pid}/task/*/schedstat"):
                try:
                    waited = int(file.read_text().split()[1])
                except (OSError, IndexError, ValueError):  # the thread is gone
                    continue
                self._first.setdefault(file, waited)
                self._last[file] = waited

    def part(self, seconds: float, programs: int) -> float:
        """How long the programs waited, as a part of the time that they ran: ``seconds`` each."""
        waited = sum(last - self._first[file] for file, last in self._last.items())
        return waited / (1e9 * seconds * programs) if seconds > 0 and programs else 0.0


def note(part: float) -> str:
    """A sentence for the user, for a busy machine."""
    return (
        f"this machine's processors were busy with other work: the programs waited for one for {part:.0%} of their "
        "time, so the errors above are larger than on an idle machine, and say nothing of gemlet"
    )
