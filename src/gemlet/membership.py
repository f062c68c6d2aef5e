"""The variables that make a program a client of a daemon, by whatever way they reach it.

On the path of `gemlet run`: standard library only.
"""

from __future__ import annotations

WIRE_VERSION = (
    7  # kWireVersion of native/wire.h: what the hook of this version speaks, and the newest that its daemon does
)
WIRE_OLDEST = WIRE_VERSION - 1  # kWireOldest: what a hook must speak at least for its daemon to serve it


def client_variables(*, preload: str, socket: str, group: str | None = None, strict: bool = False) -> dict[str, str]:
    """``preload``: value of LD_PRELOAD. ``group``: None where the socket decides which group its clients are in."""
    variables = {"LD_PRELOAD": preload, "GEMLET_SOCKET": socket}
    if group is not None:
        variables["GEMLET_GROUP"] = group
    if strict:
        variables["GEMLET_STRICT"] = "1"
    return variables
