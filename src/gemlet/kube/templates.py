"""Makes the ResourceClaimTemplates that admitted pods name, and removes those that no pod names any more.

Admission names a template by its content, and makes it before it answers, if that does not take long; else this makes
it when the pod is there, and Kubernetes tries again until a pod's template exists. Every replica of the webhook would
make the same template, so every one may.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gemlet.daemon.logs import Limiter
from gemlet.kube import admission, names
from gemlet.kube.api_server import ApiError, is_named, place_of
from gemlet.kube.ask import asks
from gemlet.kube.pod_events import warning
from gemlet.kube.request import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.kube.api_server import ApiServer
    from gemlet.kube.ask import Ask

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
OLD_SECONDS = 3600.0  # a template this old that no pod names goes; younger ones may be for a pod that is not seen yet
RETRY_SECONDS = 2.0
AHEAD_SECONDS = 1.0  # for which an admission waits
AHEAD_PER_MINUTE = 30  # a review may come from any pod, and be of none: what it asks for stays for OLD_SECONDS
AT_ONCE = 10  # templates that a pod has made before it is the next namespace's turn; one may ask for thousands
MOST_MISSED = 8  # of the templates that one pod names and nobody makes; a pod may name any number, and gets one event
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
OURS = f"{names.LABEL_MANAGED}=gemlet"


def templates_path(namespace: str) -> str:
    """Where the apiserver has a namespace's templates."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"


def pods_path(namespace: str) -> str:
    """Where the apiserver has a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def named_templates(pod: dict[str, Any]) -> list[str]:
    """The templates of ours that a pod names; none where they cannot be read, for one pod must not end the webhook."""
    try:
        claims = pod["spec"].get("resourceClaims") or []
        named = [claim.get("resourceClaimTemplateName") for claim in claims if admission.is_claim_name(claim["name"])]
    except (LookupError, TypeError, AttributeError):
        return []
    return [name for name in named if isinstance(name, str)]


class TemplateMaker:
    """Follows the pods of all namespaces."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._made: set[tuple[str, str]] = set()
        self._ahead = Limiter(AHEAD_PER_MINUTE)
        self._told: set[str] = set()  # uids of the pods that have their event
        # Pods for which some are to be made: by namespace, whose turn comes first, and uid, the name and what it names.
        # Not the pods, each of which may be of megabytes.
        self._lines: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._make())
            tasks.create_task(self._heed())
            tasks.create_task(self._sweep())

    async def make(self, pod: dict[str, Any], *, only: str | None = None) -> int:
        """Makes the templates a pod names, unless they are there, or ``only`` one of them; returns how many, of which
        `AT_ONCE` may not be all. Raises ApiError.

        If a template is missing and cannot be made, because the annotations do not ask for it, the pod gets an event.
        """
        meta = pod["metadata"]
        named = [name for name in named_templates(pod) if (meta["namespace"], name) not in self._made]
        if only is not None:
            named = [name for name in named if name == only]
        if not named:
            return 0
        try:
            asked = {admission.template_name(ask): ask for ask in asks(pod).values()}
        except BadRequest:
            asked = {}  # annotations changed since: the template that is named is not ours to guess
        for name in [name for name in named if name not in asked][:MOST_MISSED]:
            await self._miss(meta, name)
        wanted = sorted(asked.keys() & set(named))[:AT_ONCE]
        for name in wanted:
            await self._create(meta["namespace"], asked[name])
        return len(wanted)

    async def ahead(self, namespace: str, asked: Iterable[Ask]) -> None:
        """Makes what a pod that is being admitted will name, so that its claims need not wait for it.

        What fails, takes long, or is too much for nobody to have seen its pods, is made when the pod is there.
        """
        try:
            async with asyncio.timeout(AHEAD_SECONDS):
                for ask in asked:
                    if (namespace, admission.template_name(ask)) in self._made:
                        continue
                    if not self._ahead.allow(None, now=time.monotonic())[0]:
                        return
                    await self._create(namespace, ask)
        except (ApiError, TimeoutError) as error:
            logger.info("template in namespace=%s not made ahead: %s", namespace, error or "it takes long")

    async def try_to_make(self, pod: dict[str, Any], *, only: str | None = None) -> int:
        """As `make`, but what fails is of this pod only, such as a refusal in a namespace that is being deleted.

        Anybody may have written the pod: by what nobody foresaw in it the webhook would end after each start."""
        try:
            return await self.make(pod, only=only)
        except ApiError as error:
            if not error.refused:
                raise
            logger.warning("pod=%s/%s template: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], error)
        except Exception:
            logger.exception("pod=%s/%s template", pod["metadata"]["namespace"], pod["metadata"]["name"])
        return 0

    async def deleted(self, template: dict[str, Any]) -> None:
        """Makes a template that was deleted again if a pod names it. Raises ApiError.

        Not one that no pod has named: anybody may make and delete any number, and each would cost a list of pods.
        """
        place = namespace, name = place_of(template)
        if place not in self._made:
            return
        self._made.discard(place)
        async for pod in self._api.listed(pods_path(namespace)):
            if is_named(pod) and name in named_templates(pod) and await self.try_to_make(pod, only=name):
                logger.info("template=%s/%s made again", namespace, name)
                return
            del pod

    async def sweep(self, now: datetime) -> list[str]:
        """Removes old templates of ours that no pod names; returns their names. Raises ApiError."""
        gone: dict[tuple[str, str], None] = {}  # not what pods name instead: each may name ten thousands
        async for template in self._api.listed(TEMPLATES, labelSelector=OURS):
            if is_named(template) and is_old(template, now):
                gone[place_of(template)] = None
            del template
        async for pod in self._api.listed("/api/v1/pods"):
            for name in named_templates(pod) if is_named(pod) else ():
                gone.pop((pod["metadata"]["namespace"], name), None)
            del pod
        for namespace, name in gone:
            # `deleted` hears of it, for a new pod's sake.
            await self._api.delete(f"{templates_path(namespace)}/{name}")
        return [name for _, name in gone]

    async def _create(self, namespace: str, ask: Ask) -> None:
        try:
            await self._api.create(templates_path(namespace), admission.template(ask, namespace))
        except ApiError as error:
            if error.status != 409:
                raise
        self._made.add((namespace, admission.template_name(ask)))

    async def _miss(self, meta: dict[str, Any], name: str) -> None:
        if meta["uid"] in self._told:
            return
        try:
            await self._api.get(f"{templates_path(meta['namespace'])}/{name}")
        except ApiError as error:
            if not error.gone:
                raise
            self._told.add(meta["uid"])
            text = (
                f"gemlet: spec.resourceClaims[{admission.CLAIM}].resourceClaimTemplateName: there is no {name} in "
                f"{meta['namespace']}, and the pod's annotations do not ask for it; leave the claim out and ask by "
                f"{names.ANNOTATION_MEMORY} and {names.ANNOTATION_COMPUTE}, or make the template"
            )
            logger.info("pod=%s/%s %s", meta["namespace"], meta["name"], text)
            await self._api.create(*warning(meta, text, reason="NoShareTemplate", component="gemlet-webhook"))

    def _line_up(self, pod: dict[str, Any]) -> None:
        """Has `make_some` make what a pod names. Nobody else's waits for it here."""
        meta, named = pod["metadata"], named_templates(pod)
        if any((meta["namespace"], name) not in self._made for name in named):
            known = tuple(named) if len(named) <= AT_ONCE else ()
            self._lines.setdefault(meta["namespace"], {})[meta["uid"]] = (meta["name"], known)
            self._woken.set()

    async def _make(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while await self.make_some():
                pass

    async def make_some(self) -> bool:
        """Makes some templates for the first pod of the namespace whose turn it is; returns whether there was one."""
        if not self._lines:
            return False
        namespace, pods = next(iter(self._lines.items()))
        uid, (name, known) = next(iter(pods.items()))
        try:
            more = await self._make_for(namespace, uid, name, known)
        except ApiError as error:
            logger.warning("templates: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
            more = True
        if not more:
            del pods[uid]
        del self._lines[namespace]
        if pods:
            self._lines[namespace] = pods
        return True

    async def _make_for(self, namespace: str, uid: str, name: str, known: tuple[str, ...]) -> bool:
        """Returns whether there may be more to make. Raises ApiError."""
        if known and all((namespace, each) in self._made for each in known):
            return False
        async for pod in self._api.listed(pods_path(namespace), fieldSelector=f"metadata.name={name}"):
            if is_named(pod) and pod["metadata"]["uid"] == uid:
                return await self.try_to_make(pod) == AT_ONCE
        return False

    async def _follow(self) -> None:
        while True:
            try:
                self._made.clear()  # somebody may have deleted one
                pods, there = self._api.listed("/api/v1/pods"), set()
                async for pod in pods:
                    if is_named(pod):
                        there.add(pod["metadata"]["uid"])
                        self._line_up(pod)
                    del pod  # it may be of megabytes, as the next
                self._told &= there
                async for kind, pod in self._api.watch("/api/v1/pods", resourceVersion=pods.version):
                    if kind == "ADDED" and is_named(pod):
                        self._line_up(pod)
                    elif kind == "DELETED" and is_named(pod):
                        self._told.discard(pod["metadata"]["uid"])
                    del pod
            except ApiError as error:
                logger.warning("templates: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _heed(self) -> None:
        while True:
            try:
                # What nobody has seen being deleted: a namespace can go and come back under the same name.
                lost = set(self._made)
                present = self._api.listed(TEMPLATES, labelSelector=OURS)
                async for template in present:
                    if is_named(template):
                        lost.discard(place_of(template))
                    del template
                self._made -= lost
                watch = self._api.watch(TEMPLATES, labelSelector=OURS, resourceVersion=present.version)
                async for kind, template in watch:
                    if kind == "DELETED" and is_named(template):
                        await self.deleted(template)
                    del template
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


def is_old(template: dict[str, Any], now: datetime) -> bool:
    """Whether nothing that has been admitted can still come to name it."""
    try:
        age = now - datetime.fromisoformat(template["metadata"]["creationTimestamp"])
    except (LookupError, TypeError, ValueError):
        return False
    return age.total_seconds() >= OLD_SECONDS
