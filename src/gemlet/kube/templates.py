"""Makes the ResourceClaimTemplates that admitted pods name, and removes those that no pod names any more.

Admission must not make objects, so it names a template by its content, and this makes it when the pod is there.
Kubernetes tries again until a pod's template exists. Making is the same whoever does it, so every replica of the
webhook may.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gemlet.kube import admission, names
from gemlet.kube.api_server import ApiError
from gemlet.kube.request import BadRequest, from_annotations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.kube.api_server import ApiServer

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
OLD_SECONDS = 3600.0  # a template this old that no pod names goes; younger ones may be for a pod that is not seen yet
RETRY_SECONDS = 2.0
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"


def named_template(pod: dict[str, Any]) -> str | None:
    """The template of ours that a pod names."""
    claims = pod["spec"].get("resourceClaims") or []
    found = (claim.get("resourceClaimTemplateName") for claim in claims if claim["name"] == admission.CLAIM)
    return next(found, None)


class TemplateMaker:
    """Follows the pods of all namespaces."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._made: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._sweep())

    async def make(self, pod: dict[str, Any]) -> bool:
        """Makes the template a pod names, unless it is there; returns whether. Raises ApiError."""
        name, meta = named_template(pod), pod["metadata"]
        if name is None or (meta["namespace"], name) in self._made:
            return False
        try:
            amounts = from_annotations(meta.get("annotations") or {})
        except BadRequest:
            return False  # annotations changed since: the template that is named is not ours to guess
        if amounts is None or admission.template_name(amounts) != name:
            return False
        try:
            path = f"/apis/resource.k8s.io/v1/namespaces/{meta['namespace']}/resourceclaimtemplates"
            await self._api.create(path, admission.template(amounts, meta["namespace"]))
        except ApiError as error:
            if error.status != 409:
                raise
        self._made.add((meta["namespace"], name))
        return True

    async def sweep(self, now: datetime) -> list[str]:
        """Removes old templates of ours that no pod names; returns their names. Raises ApiError."""
        templates = await self._api.get(TEMPLATES, labelSelector=f"{names.LABEL_MANAGED}=gemlet")
        pods = await self._api.get("/api/v1/pods")
        gone = unused(templates["items"], pods["items"], now)
        for namespace, name in gone:
            await self._api.delete(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/{name}")
            self._made.discard((namespace, name))
        return [name for _, name in gone]

    async def _follow(self) -> None:
        while True:
            try:
                self._made.clear()  # somebody may have deleted one
                pods = await self._api.get("/api/v1/pods")
                for pod in pods["items"]:
                    await self.make(pod)
                version = pods["metadata"]["resourceVersion"]
                async for kind, pod in self._api.watch("/api/v1/pods", resourceVersion=version):
                    if kind == "ADDED":
                        await self.make(pod)
            except ApiError as error:
                logger.warning("templates: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                for name in await self.sweep(datetime.now(UTC)):
                    logger.info("template=%s removed: no pod names it", name)
            except ApiError as error:
                logger.warning("templates: %s", error)


def unused(templates: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]], now: datetime) -> list[tuple[str, str]]:
    """Namespace and name of the templates that are old and that no pod names."""
    used = {(pod["metadata"]["namespace"], named_template(pod)) for pod in pods}
    found = []
    for template in templates:
        meta = template["metadata"]
        age = now - datetime.fromisoformat(meta["creationTimestamp"])
        if age.total_seconds() >= OLD_SECONDS and (meta["namespace"], meta["name"]) not in used:
            found.append((meta["namespace"], meta["name"]))
    return found
