"""Makes the ResourceClaimTemplates that admitted pods name, and removes those that no pod names any more.

Admission must not make objects, so it names a template by its content, and this makes it when the pod is there.
Kubernetes tries again until a pod's template exists. Every replica of the webhook would make the same template, so
every one may.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gemlet.kube import admission, names
from gemlet.kube.api_server import ApiError
from gemlet.kube.pod_event import warning
from gemlet.kube.request import BadRequest, from_annotations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.kube.api_server import ApiServer

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
OLD_SECONDS = 3600.0  # a template this old that no pod names goes; younger ones may be for a pod that is not seen yet
RETRY_SECONDS = 2.0
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"


def templates_path(namespace: str) -> str:
    """Where the apiserver has a namespace's templates."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"


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
        self._told: set[str] = set()  # uids of the pods that have their event

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._sweep())

    async def make(self, pod: dict[str, Any]) -> bool:
        """Makes the template a pod names, unless it is there; returns whether. Raises ApiError.

        If a template is missing and cannot be made, because the annotations do not ask for it, the pod gets an event.
        """
        name, meta = named_template(pod), pod["metadata"]
        if name is None or (meta["namespace"], name) in self._made:
            return False
        try:
            amounts = from_annotations(meta.get("annotations") or {})
        except BadRequest:
            amounts = None  # annotations changed since: the template that is named is not ours to guess
        if amounts is None or admission.template_name(amounts) != name:
            await self._miss(meta, name)
            return False
        try:
            await self._api.create(templates_path(meta["namespace"]), admission.template(amounts, meta["namespace"]))
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
            await self._api.delete(f"{templates_path(namespace)}/{name}")
            self._made.discard((namespace, name))
        return [name for _, name in gone]

    async def _miss(self, meta: dict[str, Any], name: str) -> None:
        if meta["uid"] in self._told:
            return
        try:
            await self._api.get(f"{templates_path(meta['namespace'])}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._told.add(meta["uid"])
            text = (
                f"gemlet: spec.resourceClaims[{admission.CLAIM}].resourceClaimTemplateName: there is no {name} in "
                f"{meta['namespace']}, and the pod's annotations do not ask for it; leave the claim out and ask by "
                f"{names.ANNOTATION_MEMORY} and {names.ANNOTATION_COMPUTE}, or make the template"
            )
            logger.info("pod=%s/%s %s", meta["namespace"], meta["name"], text)
            await self._api.create(*warning(meta, text, reason="NoShareTemplate", component="gemlet-webhook"))

    async def _follow(self) -> None:
        while True:
            try:
                self._made.clear()  # somebody may have deleted one
                pods = await self._api.get("/api/v1/pods")
                self._told &= {pod["metadata"]["uid"] for pod in pods["items"]}
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
