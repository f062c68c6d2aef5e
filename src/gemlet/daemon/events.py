"""The last events, numbered, for `gemlet top`, `gemlet explain` and the log."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import msgspec

from gemlet.config.quantities import format_size
from gemlet.daemon.logs import Limiter
from gemlet.daemon.processes import administers

logger = logging.getLogger(__name__)

KEPT = 500
# A client in a loop can be refused thousands of times a second; the counters keep the truth, the log need not.
LOGGED_PER_MINUTE = 20  # of one kind, by one user: names of groups are free
LOGGED_IN_ALL = 300  # a minute, by users who are neither root nor the daemon's own
COMMAND_CHARACTERS = 100
TEXT_CHARACTERS = 1000
WARNINGS = frozenset({"refused", "denied", "overdue", "outside"})


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of history. ``time`` is seconds since the epoch, ``number`` rises by one."""

    number: int
    time: float
    kind: str
    group: str = ""
    pid: int = 0
    uid: int = 0
    command: str = ""
    device: int | None = None
    text: str = ""


class EventRing:
    """Keeps the last events and writes each to the log, at a bounded rate per kind and user, and of all users."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._number = 0
        self._limiter = Limiter(LOGGED_PER_MINUTE)
        self._all = Limiter(LOGGED_IN_ALL)

    def add(
        self,
        kind: str,
        *,
        time: float,
        group: str = "",
        pid: int = 0,
        uid: int = 0,
        command: str = "",
        device: int | None = None,
        text: str = "",
    ) -> Event:
        """Appends one event. ``command`` and ``text`` are cut: their length is others' choice."""
        command, text = command[:COMMAND_CHARACTERS], text[:TEXT_CHARACTERS]
        self._number += 1
        event = Event(
            number=self._number,
            time=time,
            kind=kind,
            group=group,
            pid=pid,
            uid=uid,
            command=command,
            device=device,
            text=text,
        )
        self._events.append(event)
        allowed, suppressed = self._limiter.allow((kind, uid), now=time)
        if allowed and not administers(uid):
            allowed, others = self._all.allow(None, now=time)
            suppressed += others
        if allowed:
            fields = {"group": group, "pid": pid, "command": command, "device": device, "suppressed": suppressed}
            fields_text = " ".join(f"{name}={value}" for name, value in fields.items() if value)
            logger.log(logging.WARNING if kind in WARNINGS else logging.INFO, "%s %s %s", kind, fields_text, text)
        return event

    def add_native(self, raw: dict[str, Any], *, time: float) -> Event:
        """Appends what `Server.take_events` gave; a device without index counts as none."""
        device, text = raw.get("device"), str(raw.get("text") or "")
        if raw.get("kind") == "refused" and text.isdigit():
            text = f"{format_size(int(text))} more would pass the memory limit"
        elif raw.get("kind") == "context":
            text = "has a context" if text == "1" else f"has {text} contexts"
        return self.add(
            str(raw.get("kind", "?")),
            time=time,
            group=str(raw.get("group") or ""),
            pid=int(raw.get("pid") or 0),
            uid=int(raw.get("uid") or 0),
            command=str(raw.get("command") or ""),
            device=device if isinstance(device, int) and device >= 0 else None,
            text=text,
        )

    def last(self) -> int:
        """The number of the last event."""
        return self._number

    def after(self, number: int, limit: int) -> list[Event]:
        """Events numbered above ``number``, the newest ``limit`` of them, oldest first."""
        return [event for event in self._events if event.number > number][-limit:]
