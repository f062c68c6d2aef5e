"""A request as the queues know it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Request:
    """One request; times in milliseconds of the caller's clock. ``payload`` is the caller's own.

    may_be_late: it is served late rather than dropped. client: whose it is, "" if nobody knows. together: requests that
    its batch may have at most, since a batch with it failed; 0: none did. firsts: executors that died under it and had
    begun with it, which tells nothing if others were there, too. asked: a model asked for it.
    """

    model: str
    arrived: float
    deadline: float
    payload: Any = None
    rows: int = 1
    priority: int = 0
    may_be_late: bool = False
    client: str = ""
    together: int = 0
    firsts: int = 0
    asked: bool = False
