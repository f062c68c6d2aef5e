"""What the daemon grants and would rather have said: to whoever starts a program or changes a group. Pure."""

from __future__ import annotations

from typing import TypedDict

from gemlet.config.size import format_size

MIB = 1 << 20
SMALLEST_CONTEXT = 64 * MIB  # before any was measured; contexts take from about this (under MPS) to some 600 MiB


class Remark(TypedDict):
    """``message``: what is so. ``hint``: what to do about it."""

    message: str
    hint: str


def no_device(problem: str) -> Remark:
    """No device is known, and this is why."""
    return Remark(
        message=f"no GPU was found: {problem}",
        hint="--simulate uses a simulated machine; `gemlet doctor` says what is missing here",
    )


def memory_for_nothing(limit: int | None, measured: int, *, group: str, simulated: bool) -> Remark | None:
    """A limit that contexts alone pass, if this is one. ``measured``: bytes a context takes here, 0 if unknown."""
    if limit is None or limit >= (measured or SMALLEST_CONTEXT):
        return None
    takes = f"{format_size(measured)} on this machine" if measured else f"at least {format_size(SMALLEST_CONTEXT)}"
    where = " --simulate" if simulated else ""
    return Remark(
        message=f"{format_size(limit)} of memory are less than one CUDA context takes ({takes}): "
        "a program will be able to start CUDA, at most, and every allocation will be refused",
        hint=f"`gemlet set {group} --memory 2GiB{where}` raises it",
    )
