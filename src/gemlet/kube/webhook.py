"""`gemlet kube webhook`: the HTTPS server the apiserver asks about each new pod that wants a share.

Answers keep no state, so any number of webhooks can run, and each answer is independent. With claims a template that a
pod comes to name is made on the way, unless it is a dry run.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import re
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web

from gemlet import own_memory
from gemlet.decoding import from_json
from gemlet.kube import admission, api_server, pod_shape, translate, webhook_limits
from gemlet.kube.request import BadRequest
from gemlet.kube.templates import TemplateMaker
from gemlet.tls_certificate import Certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gemlet.kube.admission import Cluster
    from gemlet.kube.api_server import Access
    from gemlet.kube.ask import Ask
    from gemlet.kube.translate import Defaults

logger = logging.getLogger(__name__)

PATH = "/mutate-v1-pod"
TRANSLATE_PATH = "/translate-v1-pod"
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # it becomes a part of a path of the apiserver
UNREADABLE = (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError, RecursionError)
MESSAGE_CHARACTERS = 4000
MOST_PATCH = 1024 * 1024  # it repeats annotations, for which Kubernetes has 256 KiB, claims and resources
API_VERSION = "admission.k8s.io/v1"


# An answer, and the namespace in which templates are to be made of asks.
Decision = tuple[bytes, "tuple[str, list[Ask]] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """How a webhook runs.

    ``certificates``: a directory with tls.crt and tls.key, as secrets of type kubernetes.io/tls name them.
    ``defaults``: for pods that were written for others.
    """

    certificates: Path
    cluster: Cluster
    defaults: Defaults
    address: str | None = None  # None for all that there are
    port: int = 8443
    api: Access | None = None  # to make templates with; None where annotations do not become claims


class Kind(msgspec.Struct):
    kind: pod_shape.Text = ""


class Request(msgspec.Struct, rename={"dry_run": "dryRun"}):
    """What is read of one. ``uid``: comes back in the answer."""

    uid: Annotated[str, msgspec.Meta(max_length=256)]
    kind: Kind = msgspec.field(default_factory=Kind)
    namespace: pod_shape.Text | None = None
    object: dict[str, Any] | None = None
    dry_run: bool | None = None


class Review(msgspec.Struct):
    """What is read of an AdmissionReview."""

    request: Request


def answer(review: Review, change: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> dict[str, Any]:
    """The review that goes back: allowed with the patch that ``change`` makes, or refused with a message. Raises one of
    ``UNREADABLE``."""
    request = review.request
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    pod = request.object
    if pod and request.kind.kind == "Pod":
        pod_shape.check(pod)
        try:
            operations = change(pod)
            patch = _encoded(operations)
        except BadRequest as error:
            response |= {
                "allowed": False,
                "status": {"code": 403, "reason": "Forbidden", "message": _short(f"gemlet: {error}")},
            }
        else:
            if operations:
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def application(cluster: Cluster, defaults: Defaults, maker: TemplateMaker | None = None) -> web.Application:
    """The server's routes. ``maker``: of templates, None where annotations do not become claims."""
    changes: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
        PATH: lambda pod: admission.patch(pod, cluster),
        TRANSLATE_PATH: lambda pod: translate.translate(pod, defaults),
    }

    reviews = webhook_limits.Reviews()

    def decided(body: bytes, path: str) -> Decision:
        """The answer, and what is to be made for it. A function, so that of the review nothing stays while it waits."""
        review = from_json(body, Review)
        reply = answer(review, changes[path])
        response = reply["response"]
        if not response["allowed"]:
            name = f"{review.request.namespace}/{_name(review.request)}"
            logger.info("pod=%s refused: %s", name, response["status"]["message"])
        asked = _claimed(review) if maker is not None and path == PATH and "patch" in response else None
        return msgspec.json.encode(reply), asked

    async def mutate(request: web.Request) -> web.StreamResponse:
        body = await reviews.body(request)
        if isinstance(body, web.Response):
            return body
        decision: Decision | web.Response
        try:
            decision = decided(body, request.path)
        except UNREADABLE as error:
            # failurePolicy decides; for a pod that asks for a share that is Fail.
            logger.warning("review not understood: %s", repr(error))
            decision = web.Response(status=400, text=f"not an AdmissionReview of a pod: {error}\n")
        del body  # the answer may wait
        if isinstance(decision, web.Response):
            return decision
        reply, asked = decision
        with reviews.held(len(reply)):
            if maker is not None and asked is not None:
                await maker.ahead(*asked)
            return await reviews.send(request, reply)

    async def ready(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=webhook_limits.MAX_REVIEW_BYTES)
    app.add_routes([*(web.post(path, mutate) for path in changes), web.get("/healthz", ready)])
    return app


def certificate(directory: Path) -> Certificate:
    """That of such a directory. Raises GemletError."""
    hint = "mount a secret of type kubernetes.io/tls there"
    return Certificate(directory / "tls.crt", directory / "tls.key", hint=hint)


async def run(options: WebhookOptions, tls: Certificate) -> None:
    """Runs until SIGTERM or SIGINT. Raises OSError if the port is taken."""
    own_memory.give_back()
    for each in (logger, webhook_limits.logger):
        each.addFilter(webhook_limits.FewLines())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        work, maker = [tls.keep_fresh()], None
        if options.api is not None:
            maker = TemplateMaker(await stack.enter_async_context(api_server.connected(options.api)))
            work.append(maker.run())
        runner = webhook_limits.runner(application(options.cluster, options.defaults, maker))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)  # requests that are being answered are answered
        assert runner.server is not None
        listening = webhook_limits.listen(runner.server, options.address, options.port, tls.context())
        stack.push_async_callback(listening.wait_closed)
        stack.callback(listening.close)
        gc.freeze()  # what is there stays: `webhook_limits` looks for garbage often
        logger.info("webhook port=%d face=%s", options.port, options.cluster.face)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(task) for task in work]
            await stopping.wait()
            for task in running:
                task.cancel()


def _claimed(review: Review) -> tuple[str, list[Ask]] | None:
    """The namespace of a pod that is really being made, and what its containers ask for."""
    request, namespace = review.request, review.request.namespace or ""
    if request.dry_run or request.object is None or not NAMESPACE.fullmatch(namespace):
        return None
    return namespace, admission.claimed(request.object)


def _encoded(operations: list[dict[str, Any]]) -> bytes:
    """Raises BadRequest for a patch that nobody needs: the answer waits until it is taken."""
    patch = msgspec.json.encode(operations)
    if len(patch) > MOST_PATCH:
        raise BadRequest(
            "spec", f"would be changed by {len(patch)} bytes", hint="take out of annotations and claims what is large"
        )
    return patch


def _short(message: str) -> str:
    """Also where it quotes a field of megabytes."""
    half = MESSAGE_CHARACTERS // 2
    return message if len(message) <= 2 * half else f"{message[:half]} ... {message[-half:]}"


def _name(request: Request) -> str:
    meta = (request.object or {}).get("metadata") or {}
    return str(meta.get("name") or meta.get("generateName") or "?")
