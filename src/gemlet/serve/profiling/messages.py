"""What `gemlet profile` and the process that runs the models say to each other: msgpack, a packet each.

Each request has a number, and its answer the same: whatever else a model writes there is no answer.
"""

from __future__ import annotations

import msgspec

from gemlet.serve.models.specification import ModelSpec
from gemlet.serve.profiles.profile import Device
from gemlet.serve.profiling.steps import Latency, Probes
from gemlet.serve.profiling.taking import Taken

MOST_BYTES = 128 * 1024  # of a packet: what a socket takes at once by default
CLOSED = 113  # exit code of a process whose connection a model has closed, or gemlet has


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Answered by Done; a model that was there before is closed by then."""

    number: int
    model: ModelSpec


class Take(msgspec.Struct, frozen=True, tag="take"):
    """Answered by Measured."""

    number: int
    step: Latency | Probes


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Answered by Done."""

    number: int


class Press(msgspec.Struct, frozen=True, tag="press"):
    """Two stressors of that kind beside each other; answered by Pressed."""

    number: int
    resource: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first message of the process; number 0."""

    number: int
    device: Device
    groups: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    number: int


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    number: int
    taken: Taken


class Pressed(msgspec.Struct, frozen=True, tag="pressed"):
    number: int
    slower: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """In place of any of these. usage: it is the command that makes no sense here."""

    number: int
    message: str
    hint: str | None = None
    usage: bool = False


Request = Load | Take | Close | Press
Reply = Ready | Done | Measured | Pressed | Failed
