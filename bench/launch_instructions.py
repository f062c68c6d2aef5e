"""How many instructions of the hook one launch takes while the token is held.

Valgrind counts them, so a busy machine does not matter. Needs the simulated machine. Two builds are compared by
running this with each: `python -m bench.launch_instructions --hook build/before/libgemhook.so.1`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from bench.machine import Machine, Sharing

ROUNDS = 12  # of bench/client's launch mode


def own_costs(profile: str, library: str) -> Counter[str]:
    """Instructions within each of a library's own functions, from a profile of callgrind."""
    names: dict[str, str] = {}  # profiles name objects and functions once, and then by number
    costs: Counter[str] = Counter()
    inside, function, skip = False, "", False
    for line in profile.splitlines():
        if match := re.match(r"c?(ob|fn)=(\(\d+\))(?: (.*))?$", line):
            name = names.setdefault(match[1] + match[2], match[3] or "")
            if line.startswith("ob="):
                inside = library in name
            elif line.startswith("fn="):
                function = name
        elif line.startswith("calls="):
            skip = True  # the next line is what was called, with all it called
        elif match := re.match(r"[+\-*\d]\S* (\d+)$", line):
            if inside and not skip:
                costs[function] += int(match[1])
            skip = False
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hook", type=Path, help="the library to measure, in place of the one in the package")
    parser.add_argument("--count", type=int, default=2000, help="launches a round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(simulate=True, workdir=Path(folder))
        with Sharing(machine) as sharing:
            sharing.group("alone")
            environment = sharing.env("alone")
            if given.hook:
                environment["LD_PRELOAD"] = str(given.hook.resolve())
            out = Path(folder) / "callgrind"
            subprocess.run(
                [
                    "valgrind", "--tool=callgrind", "--toggle-collect=cuLaunchKernel", f"--callgrind-out-file={out}",
                    machine.client, "launch", "--count", str(given.count),
                ],
                env=environment, capture_output=True, check=True, timeout=600,
            )  # fmt: skip
            costs = own_costs(out.read_text(), "libgemhook")
    launches = ROUNDS * given.count
    # Every launch passes these; marks and samples, whose number depends on the clock, are in the sum alone.
    always = sum(cost for name, cost in costs.items() if re.match(r"cuLaunchKernel\b|.*stream_for\(", name))
    print(json.dumps({"always": round(always / launches, 2), "with_marks": round(costs.total() / launches, 2)}))


if __name__ == "__main__":
    main()
