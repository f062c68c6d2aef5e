"""What a pod is told, as `kubectl describe` shows it: why it was refused, and other warnings. Pure but for the time.

The agent's answers to the kubelet (device_plugin.py, dra.py) carry `error_message`, and the kubelet makes an event of
them. The agent makes those that the kubelet has not asked about by `warning` (pods.py, reaper.py, lost_gpus.py), and so
does the webhook (templates.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gemlet.errors import GemletError
from gemlet.kube.request import BadRequest

MAX_TEXT = 1024  # of the apiserver


def error_message(error: GemletError | OSError) -> str:
    """An error as one line for an event: what, and what to do."""
    if isinstance(error, BadRequest) or not isinstance(error, GemletError):
        return f"gemlet: {error}"
    return f"gemlet: {error.message}" + (f"; {error.hint}" if error.hint else "")


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
