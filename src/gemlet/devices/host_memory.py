"""How much of the host's memory swapped device memory may take: a pure rule, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path

RESERVE = 4 << 30  # of a control group's limit, for the daemon's and the programs' own memory
SMALLEST = 256 << 20


def default_limit(available: int, cgroup_limits: list[int]) -> int:
    """Bytes: half of what is ``available``, and no more than any limit of a control group less 4 GiB."""
    room = [available // 2, *(max(0, limit - RESERVE) for limit in cgroup_limits)]
    return max(min(room), SMALLEST)


def available() -> int:
    """MemAvailable of /proc/meminfo in bytes; 0 if it cannot be read."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields.get("MemAvailable", "0 kB").split()[0]) * 1024


def cgroup_limits(root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> list[int]:
    """memory.max of this process's control group and of all above it (version 2), in bytes; "max" means no limit."""
    try:
        path = next((line[3:] for line in process.read_text().splitlines() if line.startswith("0::")), "/")
    except OSError:
        return []
    here = root / path.lstrip("/")
    limits = []
    for folder in (here, *here.parents):
        if folder != root and root not in folder.parents:
            break
        try:
            text = (folder / "memory.max").read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return limits
