"""What the page asks, answered by the daemon: each question opens a connection of the user who runs `gemlet web`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon.connection import Connection, connect
from gemlet.daemon.requests import Limits
from gemlet.decoding import from_json
from gemlet.errors import DaemonError, Refused
from gemlet.model import LONGEST_BACK_S
from gemlet.monitor.reader import read_status, read_traced
from gemlet.monitor.trace import timeline
from gemlet.monitor.web import minute
from gemlet.monitor.web.preview import preview

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.daemon.address import Endpoint
    from gemlet.monitor.web.hosts import Hosts
    from gemlet.monitor.web.serving import Serving

Answer = Callable[[Connection, "Mapping[str, str]"], Any]

PATIENCE = 30.0  # seconds: the history of 90 days takes some
POINTS = 300
MOST_EVENTS = 500  # as many as a daemon keeps
TRACED = 10.0  # seconds of the timeline


class Change(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a POST carries."""

    group: str
    limits: Limits


class Questions:
    """Answers by path. Each raises GemletError."""

    def __init__(
        self, endpoints: list[Endpoint], *, write: bool, hosts: Hosts | None = None, serving: Serving | None = None
    ) -> None:
        """``hosts``: others, in place of the one behind ``endpoints``; ``serving``: a model server on this machine."""
        self._endpoints = endpoints
        self._hosts = hosts
        self._serving = serving
        self.write = write and hosts is None

    def get(self, path: str, query: Mapping[str, str]) -> Any:
        """The answer to a GET; KeyError for an unknown path."""
        if path == "/api/page":
            return {"write": self.write, "hosts": self._hosts is not None, "serving": self._serving is not None}
        if path == "/api/hosts" and self._hosts is not None:
            return self._hosts.overview()
        if path == "/api/models" and self._serving is not None:
            return self._serving.answer()
        answer = _GET[path]
        endpoints = self._endpoints if self._hosts is None else [self._hosts.endpoint(query.get("host", ""))]
        with connect(endpoints, timeout=PATIENCE) as daemon:
            found = answer(daemon, query)
        return {"write": self.write, "status": found} if path == "/api/status" else found

    def post(self, path: str, body: bytes) -> Any:
        """The answer to a POST; KeyError for an unknown path."""
        if path not in ("/api/preview", "/api/set") or self._hosts is not None:
            raise KeyError(path)
        if path == "/api/set" and not self.write:
            raise Refused("this page only shows", hint="start it with `gemlet web --write`")
        try:
            change = from_json(body, Change)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"bad request: {error}") from None
        with connect(self._endpoints, timeout=PATIENCE) as daemon:
            if path == "/api/preview":
                return preview(read_status(daemon), change.group, change.limits.given())
            return daemon.call("set", group=change.group, limits=msgspec.to_builtins(change.limits))


def _history(daemon: Connection, query: Mapping[str, str]) -> Any:
    try:
        since, points = float(query.get("since", "900")), int(query.get("points", str(POINTS)))
        # A part that was chosen is told as times: it stays where it is while time goes on.
        begin, end = float(query.get("from", "nan")), float(query.get("to", "nan"))
    except ValueError:
        raise Refused("since, points, from and to are numbers") from None
    more: dict[str, Any] = {"group": query["group"]} if "group" in query else {}
    if columns := query.get("columns"):
        more["columns"] = columns.split(",")
    if math.isfinite(begin) and math.isfinite(end):
        now = time.time()
        since, more["until"] = max(0.001, now - begin), min(max(0.0, now - end), LONGEST_BACK_S)
    return daemon.call("recorded", since=min(since, LONGEST_BACK_S), points=points, **more)


def _minute(daemon: Connection, _: Mapping[str, str]) -> Any:
    recorded = daemon.call("recorded", since=minute.SECONDS, points=minute.POINTS)
    return {"groups": minute.judge(recorded)}


def _events(daemon: Connection, query: Mapping[str, str]) -> Any:
    try:
        begin, end = float(query["from"]), float(query["to"])
    except (KeyError, ValueError):
        raise Refused("from and to are numbers") from None
    return [event for event in daemon.call("events", since=0, limit=MOST_EVENTS) if begin <= event["time"] <= end]


def _explain(daemon: Connection, query: Mapping[str, str]) -> Any:
    if "group" not in query:
        raise DaemonError("a group is missing")
    return daemon.call("explain", group=query["group"])


def _trace(daemon: Connection, query: Mapping[str, str]) -> Any:
    if "group" not in query:
        raise DaemonError("a group is missing")
    return timeline(read_traced(daemon, query["group"], seconds=TRACED))


_GET: dict[str, Answer] = {
    "/api/status": lambda daemon, _: daemon.call("status"),
    "/api/history": _history,
    "/api/minute": _minute,
    "/api/events": _events,
    "/api/explain": _explain,
    "/api/trace": _trace,
}
