"""Daemons take over from one another under busy programs; what that costs the programs, as JSON.

    python -m tests.sim.upgrade [--groups 10] [--times 20] [--hook FILE ...]

Ten programs a group, half of them strict, and four that never pause. Exits with 1 if a program failed, was given memory
beyond its group's limit, or stalled for over a second; or if a capped group had more than its part for over a second.
``--hook``: hooks that the programs load in turns, such as the last release's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.upgrade.scene import CAP, SATURATING, Scene

PERIOD_US = 40_000
PAUSE = 3.0  # seconds after a hand-over in which waits count for it
CALM = 5.0  # seconds before the next one
STALL = 1.0  # seconds that nobody may wait longer
WINDOW = 2.0  # seconds over which a share is measured: one outside it and one within
SLACK = 0.10  # of the device's time, that the daemon itself does not count to a few ms
STEP = 0.05


@dataclass
class Watch:
    """Samples what the capped group has had, and how late this thread itself is woken."""

    scene: Scene
    shares: list[float] = field(default_factory=list)  # over the last WINDOW, at each sample
    late: float = 0.0
    ended: bool = False

    def run(self) -> None:
        samples: list[tuple[float, int]] = []
        while not self.ended:
            asked = time.monotonic()
            time.sleep(STEP)
            now = time.monotonic()
            self.late = max(self.late, now - asked - STEP)
            samples.append((now, self.scene.used_by("capped")))
            while len(samples) > 1 and samples[1][0] <= now - WINDOW:
                samples.pop(0)
            if now - samples[0][0] >= WINDOW:
                self.shares.append((samples[-1][1] - samples[0][1]) / 1e9 / (now - samples[0][0]))


def stalls(scene: Scene) -> list[tuple[float, str]]:
    """Each program's longest wait since the last time, in seconds, and its group, longest first; also of one that
    waits still.
    """
    now = time.monotonic_ns()
    found = []
    for program in scene.programs:
        words = program.words()
        longest = max(words.longest, now - words.began if words.began else 0) / 1e9
        found.append((longest, program.group + (" strict" if program.strict else "")))
        program.forget_longest()
    return sorted(found, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--hook", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        devices = min(given.groups, 10) + 1
        with Scene(Path(folder), devices=devices, hooks=[str(Path(h).absolute()) for h in given.hook]) as scene:
            return measure(scene, given.groups, given.times)


def measure(scene: Scene, groups: int, times: int) -> int:
    scene.begin(groups)
    scene.populate(groups, period_us=PERIOD_US)
    watch = Watch(scene)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        time.sleep(PAUSE)
        stalls(scene)
        calm: list[tuple[float, str]] = []
        longest: list[list[tuple[float, str]]] = []
        for n in range(times):
            time.sleep(CALM)
            calm += stalls(scene)
            scene.take_over()
            scene.until("everybody is across", scene.everybody_is_there)
            time.sleep(PAUSE)
            longest.append(stalls(scene))
            said = ", ".join(f"{s:.3f} s {who}" for s, who in longest[-1][:4])
            print(f"{n + 1}: without {max(calm)[0]:.3f} s; {said}", file=sys.stderr)
    finally:
        watch.ended = True
        thread.join()
    gaps = [float(words.split()[-2]) for words in scene.logged("handed over to")]
    every = sorted(stall for one in longest for stall, _ in one)
    figures = {
        "programs": len(scene.programs),
        "hand-overs": times,
        "longest_wait_without_s": round(max(calm)[0], 3),
        "longest_wait_s": round(every[-1], 3),
        "median_of_longest_waits_s": round(every[len(every) // 2], 3),
        "nobody_governs_s": [round(min(gaps), 3), round(max(gaps), 3)],
        "wakeup_late_s": round(watch.late, 3),
        "capped_at": CAP,
        "capped_share": round(max(watch.shares), 3),
        "saturating": 2 * SATURATING,
        "broken": scene.broken(),
    }
    print(json.dumps(figures, indent=2))
    ok = not scene.broken() and every[-1] <= STALL and max(watch.shares) <= CAP + SLACK
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
