"""One share as its node knows it: plain data, kept in the checkpoint."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.config.rules import MAX_NAME_BYTES
from gemlet.kube.request import Amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLAIM = "claim-"


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a share, as far as it is known: a claim may have no pod yet, and Allocate does not learn of the
    pod. ``uid``: tells it from another of that name; "" where it is not known."""

    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""

    @property
    def path(self) -> str:
        """Where the apiserver has it."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def is_of(self, meta: Mapping[str, Any]) -> bool:
        """Whether ``meta`` is the metadata of this pod, and not of one that had its name before it or has it now."""
        place = (meta.get("namespace"), meta.get("name"))
        return place == (self.namespace, self.name) and self.uid in ("", meta.get("uid"))


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of one or more GPUs, the same of each.

    gpus: UUIDs, each once. granted: what the scheduler counts for it; amounts: what is in force, never more. claim:
    (namespace, name) of the DRA claim; devices: what the device plugin gave out for it, by resource; exactly one of
    the two is set. opened: seconds since the epoch.
    """

    id: str
    group: str
    gpus: tuple[str, ...]
    granted: Amounts
    amounts: Amounts
    claim: tuple[str, str] | None = None
    claim_uid: str = ""
    requests: dict[str, tuple[str, ...]] = {}  # names of the claim's requests by device name
    devices: dict[str, tuple[str, ...]] = {}
    pod: Pod = Pod()
    opened: float = 0.0

    def is_of(self, granted: Amounts, requests: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether a claim is allocated as when this was opened. The rest of ``granted`` goes with the request."""
        own = self.granted
        return (own.memory, own.compute, self.requests) == (granted.memory, granted.compute, requests)


def group_name(*parts: str) -> str:
    """The name of a share's group: of its claim, or of its pod and container. Those may be longer than a group's
    name; what stands in the place of the rest is no part of such names."""
    whole = "/".join(parts)
    if len(whole) <= MAX_NAME_BYTES:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return f"{whole[: MAX_NAME_BYTES - len(digest) - 1]}~{digest}"


def share_id_of_claim(uid: str) -> str:
    """The share of a claim; the same for each call, so that preparing twice is preparing once."""
    return f"{_CLAIM}{uid}"


def claim_uid_of(share_id: str) -> str | None:
    """The uid of the claim that a share is of; None if it is of none."""
    return share_id.removeprefix(_CLAIM) if share_id.startswith(_CLAIM) else None
