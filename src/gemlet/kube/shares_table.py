"""The shares of a node by pod, for people and for programs: what each was given, and what it does with it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gemlet.config.quantities import format_size
from gemlet.kube.quantity import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gemlet.kube.share import Share

SCHEMA = 1
HEADER = ("SHARE", "MEMORY", "HELD", "SWAPPED", "COMPUTE", "LIMIT", "USED", "THROTTLED", "PRIORITY", "GPUS")
UNKNOWN = "-"
Usage = dict[str, Any]
State = Literal["open", "withheld"]


def usage_by_share(shares: Iterable[Share], status: Mapping[str, Any]) -> dict[str, dict[str, Usage]]:
    """What the daemon's ``status`` document says of each share, by share id and GPU UUID.

    memory: bytes held, of which ``swapped`` are on the host; share: of the GPU's time over 10 s, None if not known yet;
    throttled_s: seconds with work in which the maximum made it wait.
    """
    by_group = {share.group: share for share in shares}
    found: dict[str, dict[str, Usage]] = {}
    for device in status["devices"]:
        for group in device["groups"]:
            share = by_group.get(group["name"])
            if share is None or device["uuid"] not in share.gpus:
                continue
            swaps = [client["swap"] for client in group["clients"] if client["swap"]]
            found.setdefault(share.id, {})[device["uuid"]] = {
                "memory": group["memory_used"],
                "swapped": sum(swap["swapped"] for swap in swaps),
                "share": group["share"].get("10s"),
                "throttled_s": group["throttled_s"],
                "pids": [client["pid"] for client in group["clients"]],
            }
    return found


def state(*, has_file: bool, of_claim: bool) -> State:
    """``has_file``: the container runtime knows it; that of a claim starts no container without."""
    return "withheld" if of_claim and not has_file else "open"


def document(
    shares: list[Share],
    usage: Mapping[str, dict[str, Usage]] | None,
    states: Mapping[str, State],
    refused: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """The same for programs. ``usage``: None where the daemon does not answer. By share, ``states``, and why pods are
    ``refused``, by uid."""
    listed = [
        {
            **msgspec.to_builtins(share),
            "state": states[share.id],
            "refused": refused.get(share.id, {}),
            "usage": None if usage is None else usage.get(share.id, {}),
        }
        for share in shares
    ]
    return {"schema": SCHEMA, "shares": listed}


def table(shares: list[Share], usage: Mapping[str, dict[str, Usage]] | None) -> str:
    """One line per share, after a header. A share of several GPUs shows the sum of what it holds."""
    rows = [HEADER, *(_row(share, None if usage is None else usage.get(share.id, {})) for share in shares)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _row(share: Share, usage: dict[str, Usage] | None) -> tuple[str, ...]:
    amounts = share.amounts
    held = swapped = used = throttled = UNKNOWN
    if usage is not None:
        each = list(usage.values())
        held, swapped = (format_size(sum(one[name] for one in each)) for name in ("memory", "swapped"))
        known = [one["share"] for one in each if one["share"] is not None]
        used = f"{100 * sum(known):.0f}" if known else UNKNOWN
        throttled = f"{sum(one['throttled_s'] for one in each):.0f}s"
    memory, compute, limit = format_bytes(amounts.memory), str(amounts.compute), str(amounts.limit)
    gpus = ",".join(share.gpus)
    return (share.group, memory, held, swapped, compute, limit, used, throttled, str(amounts.priority), gpus)
