"""What is asked of the apiserver, over HTTP and JSON.

A client library would bring 15 packages and 30 MB of models for a handful of objects; the agent runs on every node.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from gemlet.errors import GemletError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 10.0
WATCH_SECONDS = 300


class ApiError(GemletError):
    """The apiserver said no, or nothing. ``status``: its HTTP status, 0 if it does not answer."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the apiserver is and who we are. ``token``: a file, read anew for each request because it is rotated."""

    url: str
    context: ssl.SSLContext | None = None
    token: Path | None = None


def in_cluster(host: str, port: str, directory: Path = SERVICE_ACCOUNT) -> Access:
    """Access for a pod, by its service account. Raises GemletError outside a cluster."""
    try:
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    except OSError as error:
        raise GemletError(
            f"{directory}/ca.crt cannot be read: {error.strerror}",
            hint="outside a cluster, name a kubeconfig with --kubeconfig",
        ) from None
    bracketed = f"[{host}]" if ":" in host else host
    return Access(url=f"https://{bracketed}:{port}", context=context, token=directory / "token")


def from_kubeconfig(path: Path) -> Access:
    """Access by a kubeconfig written as JSON, with certificates in it. Raises GemletError."""
    hint = "write it with `kubectl config view --raw --flatten --minify -o json`"
    try:
        document = json.loads(path.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as pair:  # ssl reads a key from a file only
                for part in ("client-certificate-data", "client-key-data"):
                    pair.write(base64.b64decode(user[part]) + b"\n")
                pair.flush()
                context.load_cert_chain(pair.name)
        return Access(url=cluster["server"], context=context)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise GemletError(f"{path} cannot be used: {error!r}", hint=hint) from None


class ApiServer:
    """One session with the apiserver; every method raises ApiError."""

    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self._access = access
        self._session = session

    async def get(self, path: str, **query: str) -> Any:
        return await self._ask("GET", path, query=query)

    async def create(self, path: str, body: Any) -> Any:
        return await self._ask("POST", path, body=body)

    async def delete(self, path: str) -> None:
        """Deletes an object; nothing happens if there is none."""
        try:
            await self._ask("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, **query: str) -> AsyncIterator[tuple[str, Any]]:
        """Events after ``resourceVersion`` in ``query``, as (type, object); ends after some minutes."""
        query |= {"watch": "true", "timeoutSeconds": str(WATCH_SECONDS), "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS, sock_read=WATCH_SECONDS + 30)
        try:
            async with self._session.get(
                self._access.url + path,
                params=query,
                headers=self._headers(),
                ssl=self._access.context or True,
                timeout=timeout,
            ) as reply:
                if reply.status != 200:
                    raise await _refusal(reply, f"GET {path}")
                async for line in _lines(reply.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(f"watch {path}: {event['object'].get('message')}", status=410)
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(f"watch {path}: {error or type(error).__name__}") from None

    async def _ask(self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None) -> Any:
        try:
            async with self._session.request(
                method,
                self._access.url + path,
                params=query,
                json=body,
                headers=self._headers(),
                ssl=self._access.context or True,
                timeout=aiohttp.ClientTimeout(total=SECONDS),
            ) as reply:
                if reply.status >= 400:
                    raise await _refusal(reply, f"{method} {path}")
                return await reply.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(f"{method} {path}: {error or type(error).__name__}", hint="is the apiserver up?") from None

    def _headers(self) -> dict[str, str]:
        if self._access.token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._access.token.read_text().strip()}"}
        except OSError as error:
            raise ApiError(f"{self._access.token} cannot be read: {error.strerror}") from None


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[ApiServer]:
    """A session for as long as it is entered."""
    async with aiohttp.ClientSession() as session:
        yield ApiServer(access, session)


async def _refusal(reply: aiohttp.ClientResponse, what: str) -> ApiError:
    text = await reply.text()
    try:
        message = json.loads(text)["message"]
    except (ValueError, LookupError, TypeError):
        message = text[:200]
    hint = "see the agent's ClusterRole" if reply.status == 403 else None
    return ApiError(f"{what}: {reply.status} {message}", status=reply.status, hint=hint)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # readline() has a limit that an object with long annotations passes.
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
