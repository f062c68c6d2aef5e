"""The variables that make a program a client of a daemon, by whatever way they reach it.

On the path of `gemlet run`: standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WIRE_VERSION = (
    7  # kWireVersion of native/wire.h: what the hook of this version speaks, and the newest that its daemon does
)
WIRE_OLDEST = WIRE_VERSION - 1  # kWireOldest: what a hook must speak at least for its daemon to serve it

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # for the driver: a fraction of the multiprocessors, under MPS
MULTIPROCESSORS = "GEMLET_MULTIPROCESSORS"  # for the hook: "GPU-...=132;GPU-...=114"


def as_whole_devices(multiprocessors: Mapping[str, int]) -> dict[str, str]:
    """What the hook tells a program under a fraction of MPS in place of the number that MPS leaves it.

    ``multiprocessors``: how many each device has, by UUID. Libraries choose their kernels by that number, and on an
    H100 cuBLAS 13 and cuDNN 9.19 leave parts of their results unwritten for most of them (bench/partial_sms.py). With
    the whole number, results are those of a whole device.
    """
    if not multiprocessors:
        return {}
    return {MULTIPROCESSORS: ";".join(f"{uuid}={count}" for uuid, count in sorted(multiprocessors.items()))}


def client_variables(*, preload: str, socket: str, group: str | None = None, strict: bool = False) -> dict[str, str]:
    """``preload``: value of LD_PRELOAD. ``group``: None where the socket decides which group its clients are in."""
    variables = {"LD_PRELOAD": preload, "GEMLET_SOCKET": socket}
    if group is not None:
        variables["GEMLET_GROUP"] = group
    if strict:
        variables["GEMLET_STRICT"] = "1"
    return variables
