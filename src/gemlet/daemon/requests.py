"""The daemon's typed reading of what arrives on its API socket: one struct an operation.

Sizes are bytes, shares 0..1. A field that is absent leaves what it speaks of as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gemlet.config.quantities import MAX_BYTES, MAX_FACTOR
from gemlet.config.toml_values import MAX_USER_CHARACTERS
from gemlet.daemon import protocol
from gemlet.decoding import json_decoder
from gemlet.errors import DaemonError
from gemlet.model import GROUP_FIELDS, LONGEST_BACK_S, GroupField, Kind

GroupName = Annotated[str, Meta(min_length=1, max_length=255)]  # config.rules has the rest
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Factor = Annotated[float, Meta(gt=0.0, le=MAX_FACTOR)]
LINE = r"^[^\x00-\x1f\x7f]*$"
MAX_USERS = 64  # of a group; each is looked up, and stands in every status. A configured group may have more.
PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


# What a field of a group may be in a request, by the kind of the field; the book checks the rest. "none" lifts a limit.
_ALLOWED: dict[Kind, Any] = {
    Kind.SHARE: Share,
    Kind.FRACTION: Share,
    Kind.NUMBER: Factor,
    Kind.SLOWDOWN: Factor,
    Kind.SIZE: Bytes | Literal["none"],
    Kind.NAMES: Annotated[list[Annotated[str, Meta(max_length=MAX_USER_CHARACTERS)]], Meta(max_length=MAX_USERS)],
}


class _Limits(msgspec.Struct):
    def given(self) -> dict[str, Any]:
        """The requested limits, by field, as values of a GroupSpec."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: _value(GROUP_FIELDS[name], value) for name, value in values.items() if value is not None}


if TYPE_CHECKING:

    class Limits(_Limits):
        """The part of a group that can change while it lives: any field of it, None for what stays as it is."""

        def __init__(self, **fields: Any) -> None: ...

else:
    Limits = msgspec.defstruct(
        "Limits",
        [(name, (field.choices or _ALLOWED[field.kind]) | None, None) for name, field in GROUP_FIELDS.items()],
        bases=(_Limits,),
        module=__name__,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def _value(field: GroupField, value: Any) -> Any:
    if field.choices is not None:
        return field.choices(value)
    if field.kind is Kind.NAMES:
        return tuple(value)
    return None if value == "none" else value


class Request(msgspec.Struct, kw_only=True, tag_field="op"):
    v: int


class Ping(Request, tag="ping"):
    """Is there a daemon, and which."""


class Status(Request, tag="status"):
    """Devices, groups, clients: the document of `gemlet status -o json`."""


class Explain(Request, tag="explain"):
    """Why a group runs or waits."""

    group: str


class Events(Request, tag="events"):
    """What happened after the event numbered ``since``."""

    since: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class History(Request, tag="history"):
    """Samples of the last ``seconds``."""

    seconds: Annotated[float, Meta(gt=0, le=120)] = 60.0


class Recorded(Request, tag="recorded"):
    """The recorded history, for the last ``since`` seconds or until ``until`` seconds ago, in at most ``points`` steps.

    ``group``: None for all, "" for the devices. ``columns``: those of history_moment.py; none for all.
    """

    group: Annotated[str, Meta(max_length=255)] | None = None
    since: Annotated[float, Meta(gt=0, le=LONGEST_BACK_S)] = 3600.0
    until: Annotated[float, Meta(ge=0, le=LONGEST_BACK_S)] = 0.0
    points: Annotated[int, Meta(ge=1, le=4000)] = 600
    columns: Annotated[list[Annotated[str, Meta(max_length=40)]], Meta(max_length=40)] = msgspec.field(
        default_factory=list
    )


class Trace(Request, tag="trace"):
    """What the programs on the devices of ``group`` and the arbiter told each other in the last ``seconds``.

    ``after``: all steps from that number on, as the last answer had it in ``next``.
    """

    group: GroupName
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class Join(Request, tag="join"):
    """What `gemlet run` asks: make the group, or find it, for the process that asks.

    ``arguments``: the beginning of the command line, from which a new group without a name gets one.

    ``device`` is the index nvidia-smi shows; minima are checked against that device alone. ``devices``: several, by
    such indices or by UUIDs, whole or their beginnings; they only have to exist. ``mps``: run under MPS where
    it runs; ``pipe_directory``: the one the program's own environment names; ``pipe_alive``: whether a control daemon
    is there, which who asks has looked up: it may be on a file system that never answers.
    """

    group: GroupName | None = None
    command: str = ""
    arguments: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=16)] = msgspec.field(
        default_factory=list
    )
    limits: Limits = msgspec.field(default_factory=Limits)
    device: Annotated[int, Meta(ge=0, le=1023)] | None = None
    devices: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=64)] = msgspec.field(
        default_factory=list
    )
    mps: bool = True
    pipe_directory: PathText | None = None
    pipe_alive: bool = False


class TakeOver(Request, tag="take_over"):
    """What `gemlet daemon --take-over` asks: all that its programs depend on, sent to ``socket``; succession.py."""

    socket: PathText


class Environment(Request, tag="environment"):
    """What `gemlet env` asks: the variables by which a program of ``group`` runs under MPS, if any. Makes nothing."""

    group: GroupName
    mps: bool = True
    pipe_directory: PathText | None = None
    pipe_alive: bool = False


class Set(Request, tag="set"):
    """Changes a live group; ``save`` also writes the daemon's configuration file."""

    group: GroupName
    limits: Limits
    save: bool = False


class OpenShare(Request, tag="share"):
    """Makes a group with a socket of its own, or gives one a socket: every client that comes through ``socket`` is in
    that group.

    For callers that place programs and check the sums themselves (Kubernetes): ``limits`` are taken as they are,
    missing ones have their defaults, and the group stays until it is removed. ``devices``: UUIDs of those that its
    programs may use, and no others; none for every one.
    """

    group: GroupName
    limits: Limits
    socket: str
    device: Annotated[int, Meta(ge=0, le=1023)] | None = None
    devices: Annotated[tuple[Annotated[str, Meta(max_length=100)], ...], Meta(max_length=64)] = ()


class Remove(Request, tag="remove"):
    """Removes a group without clients, and its socket if it has one."""

    group: str


class MpsStart(Request, tag="mps_start"):
    """Starts the MPS control daemon. ``program``: the control program; ``places``: where those of others may be."""

    program: PathText | None = None
    places: Annotated[list[PathText], Meta(max_length=8)] = msgspec.field(default_factory=list)
    force: bool = False


class MpsStop(Request, tag="mps_stop"):
    """Stops it. ``seconds``: what programs that use it are given; ``force``: nothing."""

    seconds: Annotated[int, Meta(ge=1, le=86400)] | None = None
    force: bool = False


class MpsLook(Request, tag="mps"):
    """MPS: state, servers, clients; asked anew. ``places``: as in `MpsStart`, for an administrator."""

    places: Annotated[list[PathText], Meta(max_length=8)] = msgspec.field(default_factory=list)


class Note(Request, tag="note"):
    """What a program has to say for the log: why something of gemlet's is off in it. One line each."""

    topic: Annotated[str, Meta(max_length=40, pattern=LINE)]
    text: Annotated[str, Meta(max_length=400, pattern=LINE)]


class Audit(Request, tag="audit"):
    """Which programs use a device outside gemlet; asks the driver anew."""


class Metrics(Request, tag="metrics"):
    """The metrics in Prometheus' text format."""


class Shutdown(Request, tag="shutdown"):
    """Stops the daemon; programs run on, unmanaged. ``unused``: only if nobody uses it, nor MPS."""

    unused: bool = False


AnyRequest = (
    Ping
    | Status
    | Explain
    | Events
    | History
    | Recorded
    | Trace
    | Join
    | TakeOver
    | Environment
    | Set
    | OpenShare
    | Remove
    | MpsStart
    | MpsStop
    | MpsLook
    | Note
    | Audit
    | Metrics
    | Shutdown
)
_decoder = json_decoder(AnyRequest)


def decode(line: bytes) -> AnyRequest:
    """One line as a request. Raises `DaemonError` that says what is wrong with it and where."""
    try:
        request: AnyRequest = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DaemonError(
            f"bad request: {error}", hint=f'write a request such as {{"v": {protocol.VERSION}, "op": "status"}}'
        ) from None
    if request.v != protocol.VERSION:
        raise DaemonError(
            f"the request is of version {request.v} of the API: expected version {protocol.VERSION}",
            hint="restart the daemon after an upgrade: `gemlet stop`",
        )
    return request
