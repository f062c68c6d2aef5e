"""Checks which room of native/ includes which: only those that ROOMS allows, so that includes run downwards.

A room is a folder; a file belongs to the deepest room that contains it. Run by `make lint` from anywhere in the tree.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "native"

# Each room with the rooms whose headers it may include beside its own, lower ones first. WIRE is native/ itself: wire.h
# and futex.h, which both sides of the wire share.
WIRE = ""
ROOMS: dict[str, tuple[str, ...]] = {
    WIRE: (),
    "machine": (),  # what the system says of the machine, alike to both sides and to the simulated machine
    # libgemhook.so.1
    "hook/link": (WIRE, "machine"),
    "hook/lookup": (WIRE, "hook/link"),
    "hook/submit": (WIRE, "hook/link", "hook/lookup"),
    "hook/memory": (WIRE, "hook/link", "hook/lookup", "hook/submit"),
    "hook/swap": (WIRE, "hook/link", "hook/lookup", "hook/submit", "hook/memory"),
    # gemlet._native
    "arbiter": (WIRE,),
    "arbiter/residency": (WIRE, "arbiter"),
    "server": (WIRE, "machine", "arbiter", "arbiter/residency"),
    "module": (WIRE, "arbiter", "arbiter/residency", "server"),
    # libgembatch.so.1; libcuda.so.1 and libnvidia-ml.so.1 of the simulated machine
    "batch": (),
    # gemlet-start-check
    "start_check": (),
    "sim": ("machine",),
}
# Rooms that decide and know no clock, thread, socket or file: no C header such as <time.h>, and none of these.
PURE = ("arbiter", "arbiter/residency")
IMPURE_HEADERS = (
    "atomic",
    "chrono",
    "condition_variable",
    "ctime",
    "filesystem",
    "fstream",
    "future",
    "mutex",
    "thread",
)
# Products of a single folder, whose files include each other by name alone.
BY_NAME = ("batch", "sim")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = (".cpp", ".hpp", ".c", ".h", ".def", ".inc")


def room_of(path: str) -> str:
    """The deepest room that contains the file, whose path is relative to native/. Raises KeyError if there is none."""
    parts = path.split("/")[:-1]
    if not parts:
        return WIRE
    for depth in range(len(parts), 0, -1):
        if (room := "/".join(parts[:depth])) in ROOMS:
            return room
    raise KeyError(path)


def _wrong(native: Path, path: str, room: str, kind: str, target: str) -> str | None:
    """What is wrong with one include, or None."""
    if kind == "<":
        if room in PURE and (target.endswith(".h") or target in IMPURE_HEADERS):
            return f"<{target}> is not for {room}, which knows no clock, thread, socket or file"
        return None
    if room in BY_NAME and (native / room / target).is_file():
        return None
    if not (native / target).is_file():
        return f'"{target}" is not a file: expected a path relative to native/'
    other = room_of(target)
    if other != room and other not in ROOMS[room]:
        allowed = ", ".join(name or "native" for name in (*ROOMS[room], room))
        return f'"{target}" is in {other or "native"}, but {room or "native"} may include only {allowed}'
    return None


def errors(native: Path = NATIVE) -> list[str]:
    """What is wrong below `native`, one line an include."""
    found = []
    for file in sorted(file for file in native.rglob("*") if file.suffix in SUFFIXES):
        path = file.relative_to(native).as_posix()
        try:
            room = room_of(path)
        except KeyError:
            found.append(f"native/{path}: its folder is not a room: add it to ROOMS in tools/check_includes.py")
            continue
        text = file.read_text()
        found += [
            f"native/{path}:{text.count(chr(10), 0, match.start()) + 1}: {wrong}"
            for match in INCLUDE.finditer(text)
            if (wrong := _wrong(native, path, room, match[1], match[2]))
        ]
    return found


def circles() -> list[str]:
    """Rooms that reach themselves through ROOMS: the table itself has to run downwards."""

    def below(room: str, seen: frozenset[str]) -> frozenset[str]:
        for other in ROOMS[room]:
            if other not in seen:
                seen = below(other, seen | {other})
        return seen

    return [room for room in ROOMS if room in below(room, frozenset())]


if __name__ == "__main__":
    wrong = errors()
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)
