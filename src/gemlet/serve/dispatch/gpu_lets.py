"""A gpu-let at work, and what it executes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.serve.dispatch.request import Request


@dataclass(slots=True)
class Assignment:
    """A model on a gpu-let: its planned batch and rate (requests/s), and what it took so far over that rate."""

    gpu_let: GpuLetState
    model: str
    batch: int
    rate: float
    slowdown: float
    credit: float = 0.0


@dataclass(slots=True, eq=False)
class GpuLetState:
    """A gpu-let at work. ``running``: the batch it executes, or None. ``suspended``: its executor is not there now.

    host: what it ends with, as others of the same host do. beside: batches that it executes although that one has not
    ended, which waits for what they belong to. doubted: its last batch was of requests that may fail it.
    """

    gpu: int
    number: int
    sm: float
    places: dict[str, Assignment] = field(default_factory=dict)
    running: Batch | None = None
    retired: bool = False
    suspended: bool = False
    doubted: bool = False
    host: object | None = None
    beside: list[Batch] = field(default_factory=list)

    @property
    def batches(self) -> list[Batch]:
        """All that it executes."""
        return [self.running, *self.beside] if self.running is not None else []


@dataclass(slots=True, eq=False)
class Batch:
    """Requests to execute together, now.

    number: by which it waits for others, see waits.py; 0: for none. waited: milliseconds for which it did, without
    those since ``waits_since``, if it does. replaced: its model is not served any more, or by other files.
    """

    place: Assignment
    requests: list[Request]
    started: float
    number: int = 0
    waited: float = 0.0
    waits_since: float = 0.0
    replaced: bool = False

    @property
    def gpu_let(self) -> GpuLetState:
        return self.place.gpu_let

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.requests)
