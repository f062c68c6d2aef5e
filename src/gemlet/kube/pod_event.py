"""A warning about a pod, as `kubectl describe` shows it. Pure but for the time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

MAX_TEXT = 1024  # of the apiserver


def warning(meta: dict[str, Any], text: str, *, reason: str, component: str) -> tuple[str, dict[str, Any]]:
    """Where to create the event, and the event.

    meta: of the pod; reason: a word for programs; component: the source.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"/api/v1/namespaces/{meta['namespace']}/events", {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": "Warning",
        "reason": reason,
        "message": text[:MAX_TEXT],
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
