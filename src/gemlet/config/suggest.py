"""Did you mean: the known word closest to a wrong one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What the same thing is called in the formats and tools people come from.
_ALIASES = {
    "minutil": "min", "request": "min", "gpu_request": "min", "share": "min",
    "maxutil": "max", "limit": "max", "gpu_limit": "max",
    "memorylimit": "memory", "memory_limit": "memory", "gpu_mem": "memory", "mem": "memory",
    "group": "groups", "device": "devices", "user": "users",
}  # fmt: skip
# What nobody has typed is compared with nothing: two words of 8000 characters take 6 s, and both may be a stranger's.
_MOST_CHARACTERS = 100
_MOST_WORDS = 256


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``word`` is most likely to mean, or None."""
    by_lower = {name.lower(): name for name in known}
    lower = word.lower()
    if lower in by_lower:
        return by_lower[lower]
    if _ALIASES.get(lower) in by_lower:
        return by_lower[_ALIASES[lower]]
    if len(lower) > _MOST_CHARACTERS:
        return None
    candidates = [name for name in by_lower if len(name) <= _MOST_CHARACTERS][:_MOST_WORDS]
    matches = difflib.get_close_matches(lower, candidates, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def hint(word: str, known: Iterable[str]) -> str:
    """One line: the likely word, else all of them."""
    names = list(known)
    likely = closest(word, names)
    return f"did you mean {likely}?" if likely else f"known here: {listed(names)}"


def listed(names: Sequence[str]) -> str:
    """With commas; of what nobody reads to its end, the beginning."""
    shown = ", ".join(name[:_MOST_CHARACTERS] for name in names[:_MOST_WORDS])
    return shown if len(names) <= _MOST_WORDS else f"{shown} and {len(names) - _MOST_WORDS} more"
