"""Requests to the apiserver, over HTTP and JSON.

A client library would bring 15 packages and 30 MB of models for a handful of objects, aiohttp 12 MB; the agent runs on
every node.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gemlet.errors import GemletError
from gemlet.kube.foreign_json import decoded
from gemlet.kube.http_connection import HttpConnection, HttpError
from gemlet.kube.queues import Queues

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 10.0
WATCH_SECONDS = 300
AT_ONCE = 8  # requests: an answer may have megabytes, and as many pods are asked for as the kubelet starts at a time
# Of these about one namespace, for the kubelet: a hundred pods of 1.5 MB there that start together are read for long,
# and pods of others wait for no more than what is being read. What the agent does by itself waits in no such line.
OF_NAMESPACE = 2
AGAIN_SECONDS = 2.0  # from the beginning of a watch to that of the next, at least
# Of a list. Who may make pods decides how many there are and what is in them, up to 1.5 MB each: a page is as many as
# PAGE_OBJECTS that have no more than PAGE_BYTES, of which objects in Python are up to 20 times.
PAGE_OBJECTS = 400
PAGE_BYTES = 4 * 1024 * 1024


_NOT_NOW = (401, 408, 429)


class ApiError(GemletError):
    """The apiserver said no, or nothing. ``status``: its HTTP status, 0 if it does not answer.

    ``gone``: whether it has no such object, and not only no such kind, as one that was brought back to another version.
    ``refused``: whether it would say the same again. It would not where it has too much to do, or a token is renewed.
    """

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None, served: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.gone = status == 404 and served
        self.refused = 400 <= status < 500 and status not in _NOT_NOW


class _TooLong(Exception):
    """An answer is longer than what was to be read of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the apiserver is and who we are. ``token``: a file, read anew for each request because it is rotated;
    ``authority``: one that has what ``context`` trusts, for the same reason."""

    url: str
    context: ssl.SSLContext | None = None
    token: Path | None = None
    authority: Path | None = None


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
    authority = directory / "ca.crt"
    return Access(url=f"https://{bracketed}:{port}", context=context, token=directory / "token", authority=authority)


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
    except FileNotFoundError:
        raise GemletError(f"{path}: no such file", hint=f"check the spelling, or {hint}") from None
    except OSError as error:  # of TLS, too
        raise GemletError(f"{path} cannot be used: {error.strerror or error}", hint=hint) from None
    except json.JSONDecodeError as error:
        raise GemletError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}", hint=hint) from None
    except KeyError as error:
        raise GemletError(f"{path} cannot be used: it has no {error}", hint=hint) from None
    except (LookupError, TypeError):
        raise GemletError(
            f"{path} cannot be used: it is not a kubeconfig with a cluster and a user", hint=hint
        ) from None
    except ValueError as error:
        raise GemletError(f"{path} cannot be used: {error}", hint=hint) from None


class ApiServer:
    """The apiserver; every method raises ApiError. A connection that is free is used again."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._context = access.context
        self._trusted = ""  # what the file of the authority had when the context was made of it
        self._free: list[HttpConnection] = []
        self._room = asyncio.Semaphore(AT_ONCE)
        self._queues = Queues(OF_NAMESPACE)

    async def get(self, path: str, *, in_line: bool = False, **query: str) -> Any:
        """``in_line``: behind what else is asked so about the namespace; for who may ask for any number at once."""
        async with self._queues.of(_namespace(path)) if in_line else nullcontext():
            return await self._ask("GET", path, query=query)

    def listed(self, path: str, **query: str) -> Listing:
        return Listing(self, path, query)

    async def page(self, path: str, query: dict[str, str], *, most: int | None) -> tuple[Any, int] | None:
        """As `get`, and how many bytes it was; None for more than ``most``."""
        try:
            return await self._ask_sized("GET", path, query=query, most=most)
        except _TooLong:
            return None

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
        """Events after ``resourceVersion`` in ``query``, as (type, object), without an end: a new list of what there is
        would be one of the whole cluster for the apiserver, from each node. No object is kept."""
        while True:
            again = asyncio.get_running_loop().time() + AGAIN_SECONDS
            async with aclosing(self.watch_once(path, **query)) as events:
                async for kind, found in events:
                    meta = found.get("metadata")
                    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
                    query |= {"resourceVersion": version} if version else {}
                    yield kind, found
                    del found
            # It may have ended at once, and the next one may, too.
            await asyncio.sleep(max(0.0, again - asyncio.get_running_loop().time()))

    async def watch_once(self, path: str, **query: str) -> AsyncGenerator[tuple[str, Any]]:
        """As `watch`; ends after some minutes."""
        query |= {"watch": "true", "timeoutSeconds": str(WATCH_SECONDS), "allowWatchBookmarks": "true"}
        connection = None
        try:
            async with asyncio.timeout(SECONDS):
                connection = await self._connection()
                reply = await connection.ask("GET", _target(path, query), self._headers())
                if reply.status_code != 200:
                    raise _refusal(reply.status_code, await _whole(connection), f"GET {path}")
            # No timeout around this: it would end the task of a consumer that takes long for an event.
            connection.patience = WATCH_SECONDS + 30
            async for line in _lines(connection):
                kind, found = _event(decoded(line))
                if kind == "ERROR":
                    raise ApiError(f"watch {path}: {found.get('message')}", status=410)
                yield kind, found
                del line, found  # it may be of megabytes, and the next may come after hours, or bring as many
        except (HttpError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            raise ApiError(f"watch {path}: {str(error) or type(error).__name__}") from None
        finally:
            if connection is not None:
                await connection.close()

    async def close(self) -> None:
        while self._free:
            await self._free.pop().close()

    async def _ask(self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None) -> Any:
        return (await self._ask_sized(method, path, query=query, body=body))[0]

    async def _ask_sized(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None, most: int | None = None
    ) -> tuple[Any, int]:
        content = None if body is None else json.dumps(body).encode()
        try:
            async with self._room, asyncio.timeout(SECONDS):
                status, text = await self._exchange(method, _target(path, query or {}), content, most)
                if status >= 400:
                    raise _refusal(status, text, f"{method} {path}")
                return decoded(text), len(text)
        except (HttpError, OSError, ValueError) as error:
            raise ApiError(
                f"{method} {path}: {str(error) or type(error).__name__}", hint="check that the apiserver runs"
            ) from None

    async def _exchange(self, method: str, target: str, body: bytes | None, most: int | None) -> tuple[int, bytes]:
        while True:
            used = bool(self._free)
            connection = self._free.pop() if used else await self._connection()
            kept = False
            try:
                reply = await connection.ask(method, target, self._headers(), body)
                text = await _whole(connection, most)
                kept = connection.again()
                return reply.status_code, text
            except HttpError as error:
                if not (used and error.stale):
                    raise  # else it has been closed since it was last used: the request was not heard
            finally:
                if kept:
                    self._free.append(connection)
                else:
                    await connection.close()

    async def _connection(self) -> HttpConnection:
        if self._access.authority is not None:
            with suppress(OSError, ValueError):  # `ssl.SSLError` among them: of half a file the one before stays
                content = self._access.authority.read_text()
                if content != self._trusted:
                    self._context, self._trusted = ssl.create_default_context(cadata=content), content
        return await HttpConnection.open(self._access.url, self._context)

    def _headers(self) -> dict[str, str]:
        if self._access.token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._access.token.read_text().strip()}"}
        except OSError as error:
            raise ApiError(f"{self._access.token} cannot be read: {error.strerror}") from None


class Listing:
    """The objects at a path, page by page, so that a cluster's pods need not fit into memory; an object is given once
    and not kept. ``version``: from which to watch, once all have been given. Raises ApiError."""

    def __init__(self, api: ApiServer, path: str, query: dict[str, str]) -> None:
        self._api, self._path, self._query = api, path, query
        self.version = ""

    async def __aiter__(self) -> AsyncIterator[Any]:
        limit, rest = PAGE_OBJECTS, ""
        while True:
            query = self._query | {"limit": str(limit)} | ({"continue": rest} if rest else {})
            page = await self._api.page(self._path, query, most=PAGE_BYTES if limit > 1 else None)
            if page is None:
                limit = max(1, limit // 4)
                continue
            items, self.version, rest = _parts(page[0], self._path)
            # Few large objects must not make every other one a request of its own.
            fitting = len(items) * PAGE_BYTES // (2 * page[1])
            limit = max(1, min(fitting, 4 * limit, PAGE_OBJECTS)) if items else limit
            del page
            items.reverse()
            while items:
                yield items.pop()
            if not rest:
                return


def place_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object."""
    return found["metadata"]["namespace"], found["metadata"]["name"]


def is_named(found: Any) -> bool:
    """Whether an object has what every one of a namespace has. One without, as of something between the apiserver and
    here, is left out, and ends nobody who follows all of them."""
    meta = found.get("metadata") if isinstance(found, dict) else None
    return isinstance(meta, dict) and all(isinstance(meta.get(key), str) for key in ("namespace", "name", "uid"))


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[ApiServer]:
    """The apiserver for as long as it is entered."""
    api = ApiServer(access)
    try:
        yield api
    finally:
        await api.close()


def _namespace(path: str) -> str:
    """Of the objects at ``path``; "" where it is not of one."""
    _, separator, rest = path.partition("/namespaces/")
    return rest.partition("/")[0] if separator else ""


def _target(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


async def _whole(connection: HttpConnection, most: int | None = None) -> bytes:
    """Raises _TooLong."""
    read = bytearray()
    async for part in connection.body():
        read += part
        if most is not None and len(read) > most:
            raise _TooLong
    return bytes(read)


def _event(line: Any) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for what is none."""
    try:
        kind, found = str(line["type"]), line["object"]
    except (LookupError, TypeError):
        raise ValueError("what came is not an event") from None
    if not isinstance(found, dict):
        raise ValueError("an event is not about an object")
    return kind, found


def _parts(page: Any, path: str) -> tuple[list[Any], str, str]:
    """The objects of a page, the version of the list, and where it goes on, "" at its end. Raises ApiError."""
    try:
        meta = page["metadata"]
        return list(page["items"] or ()), str(meta["resourceVersion"]), meta.get("continue") or ""
    except (LookupError, TypeError, AttributeError):
        raise ApiError(f"GET {path}: what came is not a list of objects") from None


def _refusal(status: int, text: bytes, what: str) -> ApiError:
    try:
        said = json.loads(text)
        message, about = said["message"], said.get("details") or {}
        served = bool(about.get("name"))
    except (ValueError, LookupError, TypeError, AttributeError):
        message, served = text[:200].decode(errors="replace"), False
    hint = "check the agent's ClusterRole" if status == 403 else None
    return ApiError(f"{what}: {status} {message}", status=status, hint=hint, served=served)


async def _lines(connection: HttpConnection) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in connection.body():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
