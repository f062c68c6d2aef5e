"""The DRA driver's answers to the kubelet: claims prepared and unprepared, health of the GPUs.

Both are idempotent for each claim, and each claim has its own answer: one that fails does not fail the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gemlet.errors import GemletError
from gemlet.kube import cdi, claims, names, services
from gemlet.kube.api_server import ApiError
from gemlet.kube.pod_events import error_message
from gemlet.kube.protocol import dra_pb2 as messages
from gemlet.kube.protocol import drahealth_pb2 as health
from gemlet.kube.protocol import registration_pb2 as registration
from gemlet.kube.share import claim_uid_of, share_id_of_claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from gemlet.kube.book import ShareBook
    from gemlet.kube.device_plugin import Gpus
    from gemlet.kube.share import Pod, Share

logger = logging.getLogger(__name__)

HEALTH_SECONDS = 10.0  # the kubelet forgets what is not repeated within 30


class Objects(Protocol):
    """What this module needs of `ApiServer`."""

    async def get(self, path: str, *, in_line: bool = False, **query: str) -> Any: ...


def claim_path(namespace: str, name: str) -> str:
    """Where the apiserver has a claim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


class DraDriver:
    """DRAPlugin and DRAResourceHealth for the node ``pool``.

    ``look_again``: checks the pods of a claim that is a share now, among them those for which it is reserved. Raises
    ApiError. ``in_use``: namespace and name of each claim that a pod of the node uses.
    """

    def __init__(
        self,
        book: ShareBook,
        gpus: Gpus,
        api: Objects,
        *,
        pool: str,
        look_again: Callable[[Share, Iterable[Pod]], Awaitable[None]] | None = None,
        in_use: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._api = api
        self._pool = pool
        self._look_again = look_again
        self._in_use = in_use

    async def NodePrepareResources(  # noqa: N802
        self, request: messages.NodePrepareResourcesRequest
    ) -> messages.NodePrepareResourcesResponse:
        answer = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].CopyFrom(await self._prepared(claim))
        return answer

    async def NodeUnprepareResources(  # noqa: N802
        self, request: messages.NodeUnprepareResourcesRequest
    ) -> messages.NodeUnprepareResourcesResponse:
        answer = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].CopyFrom(messages.NodeUnprepareResourceResponse())
            try:
                await self._book.close(share_id_of_claim(claim.uid))
            except Exception as error:  # noqa: BLE001  its own, whatever it is
                self._note(error, claim.namespace, claim.name)
                logger.warning("claim=%s/%s not unprepared: %s", claim.namespace, claim.name, error)
                answer.claims[claim.uid].error = error_message(error)
        return answer

    async def adopt(self) -> None:
        """Opens the claims again of which a damaged checkpoint did not say enough. Raises GemletError, OSError.

        The daemon still has their groups, which are named after them, if it has not lost its own file, too, and their
        names are not so long that a group's is cut off. And pods use them.
        """
        lost = {uid for name in self._book.unaccounted if (uid := claim_uid_of(name)) is not None}
        if not lost:
            return
        groups = [tuple(group.split("/")) for group in await self._book.unknown_groups()]
        places = {(group[0], group[1]) for group in groups if len(group) == 2 and group[1]}  # slots and units: three
        for namespace, name in sorted(places | set(self._in_use())):
            try:
                seen = await self._api.get(claim_path(namespace, name))
            except ApiError as error:
                if not error.gone:
                    raise
                continue
            uid = seen["metadata"]["uid"]
            if uid not in lost:
                continue
            try:
                share = await self._open(messages.Claim(namespace=namespace, name=name, uid=uid))
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001  its own, whatever it is
                self._note(error, namespace, name)
                logger.warning("claim=%s/%s not accounted for: %s", namespace, name, error)
            else:
                logger.info("share=%s group=%s is accounted for again", share.id, share.group)

    async def NodeWatchResources(  # noqa: N802
        self, request: health.NodeWatchResourcesRequest
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            async with self._gpus.next_change() as change:
                yield self._health()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(change, HEALTH_SECONDS)

    async def _prepared(self, claim: messages.Claim) -> messages.NodePrepareResourceResponse:
        try:
            return self._response(await self._open(claim))
        except Exception as error:  # noqa: BLE001  of one claim, whatever is odd about it: the others must not fail
            self._note(error, claim.namespace, claim.name)
            logger.warning("claim=%s/%s not prepared: %s", claim.namespace, claim.name, error)
            return messages.NodePrepareResourceResponse(error=error_message(error))

    @staticmethod
    def _note(error: Exception, namespace: str, name: str) -> None:
        if not isinstance(error, (GemletError, OSError)):
            logger.error("claim=%s/%s is odd", namespace, name, exc_info=error)

    async def _open(self, claim: messages.Claim) -> Share:
        before = self._book.openings()  # pods take their time, and the kubelet may ask for what the claim is then
        seen = await self._api.get(claim_path(claim.namespace, claim.name), in_line=True)
        gpus = {gpu.device: gpu for gpu in self._gpus.all if gpu.uuid in self._gpus.healthy}
        share = claims.read_claim(seen, uid=claim.uid, pool=self._pool, gpus=gpus)
        ours = {
            other.claim[1] for other in self._book.shares.values() if other.claim and other.claim[0] == claim.namespace
        }
        users = claims.pods_of(seen)
        refusal: GemletError | None = None
        for user in users:
            try:
                # Of a pod of megabytes nothing stays while the next, a daemon or a disk is waited for.
                container = self._checked(await self._api.get(user.path, in_line=True), user, ours, claim.name)
            except GemletError as error:
                refusal = error.with_traceback(None)  # which keeps the pod
                continue
            # Its annotations, and its name in the metrics. Others are checked as they come (permits.py).
            named = msgspec.structs.replace(share.pod, name=user.name, container=container)
            share = msgspec.structs.replace(share, pod=named)
            break
        else:
            if refusal is not None:
                raise refusal
        opened = await self._book.open(share, before=before)
        if self._look_again is not None:  # before the kubelet hears of it, whose containers would have to wait
            await self._look_again(opened, users)
        return opened

    def _checked(self, seen: dict[str, Any], user: Pod, ours: set[str], claim: str) -> str:
        """The container that uses ``claim`` of the pod that the apiserver has as ``user``. Raises GemletError."""
        if not user.is_of(seen["metadata"]):
            raise GemletError(
                f"the pod {user.namespace}/{user.name} is another now than the one that the claim is reserved for",
                hint="wait for the kubelet to end the one before",
            )
        host = self._book.host
        claims.check_pod(seen, ours | {claim}, host.paths, host_pid=host.host_pid)
        return claims.container_of(seen, claim)

    def _response(self, share: Share) -> messages.NodePrepareResourceResponse:
        answer = messages.NodePrepareResourceResponse()
        edits = self._book.edits(share)
        for device, requests in share.requests.items():
            ids = [cdi.device_id(share.id, device), *edits.cdi]
            called = [claims.name_in_pods(request) for request in requests]  # the kubelet asks by the container
            answer.devices.add(request_names=called, pool_name=self._pool, device_name=device, cdi_device_ids=ids)
        return answer

    def _health(self) -> health.NodeWatchResourcesResponse:
        now = int(time.time())
        answer = health.NodeWatchResourcesResponse()
        for gpu in self._gpus.named():
            well = gpu.uuid in self._gpus.healthy
            answer.devices.add(
                device=health.DeviceIdentifier(pool_name=self._pool, device_name=gpu.device),
                health=health.HealthStatus.HEALTHY if well else health.HealthStatus.UNHEALTHY,
                last_updated_time=now,
                message="" if well else f"{gpu.uuid} no longer answers NVML",
            )
        return answer


class Registrar:
    """pluginregistration.Registration: what the kubelet asks every owner of a socket in its plugins_registry."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self.registered = False

    async def GetInfo(self, request: Any) -> registration.PluginInfo:  # noqa: N802
        versions = [f"{version}.DRAPlugin" for version in services.DRA_VERSIONS]
        versions += [f"{version}.DRAResourceHealth" for version in services.HEALTH_VERSIONS]
        return registration.PluginInfo(
            type="DRAPlugin", name=names.DRIVER, endpoint=str(self._endpoint), supported_versions=versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self.registered = request.plugin_registered
        if request.plugin_registered:
            logger.info("kubelet driver=%s registered", names.DRIVER)
        else:
            logger.error("kubelet driver=%s not registered: %s", names.DRIVER, request.error)
        return registration.RegistrationStatusResponse()
