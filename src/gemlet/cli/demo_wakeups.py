"""Whether this machine's processors had time for the demo: how late a thread that sleeps wakes up.

Simulated kernels take modelled time, but the programs and their hand-overs run on this machine. The load average would
describe the minute before, which the build of gemlet may have filled.
"""

from __future__ import annotations

import threading
import time
from typing import Self

INTERVAL_SECONDS = 0.005
LATE_SECONDS = 0.001  # on an idle machine a thread wakes up within 0.1 to 0.3 ms
BUSY = 0.05  # of all wake-ups late: about where errors of shares begin to show


class WakeUps:
    """Counts wake-ups, and those that came late, in a thread of its own while entered."""

    def __init__(self) -> None:
        self.all = self.late = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._count, name="wake-ups", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def busy(self) -> bool:
        """Whether so many wake-ups were late that the measurement is off."""
        return self.all > 0 and self.late > BUSY * self.all

    def note(self) -> str:
        """A sentence for the user, for a busy machine."""
        return (
            f"this machine's processors were busy with other work: {self.late / self.all:.0%} of wake-ups came more "
            f"than {LATE_SECONDS * 1000:g} ms late, so the errors above are larger than on an idle machine"
        )

    def _count(self) -> None:
        while not self._end.is_set():
            due = time.monotonic() + INTERVAL_SECONDS
            time.sleep(INTERVAL_SECONDS)
            self.all += 1
            self.late += time.monotonic() > due + LATE_SECONDS
