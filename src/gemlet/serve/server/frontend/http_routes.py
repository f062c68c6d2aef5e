"""All but inference over HTTP: health, metadata, statistics, repository control, shared memory, metrics, logs."""

from __future__ import annotations

import base64
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote

import msgspec

from gemlet.decoding import from_json
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import documents, metrics
from gemlet.serve.server.frontend.http_exchange import JSON
from gemlet.serve.server.frontend.regions import DeviceRegion, SystemRegion, UserRegions
from gemlet.serve.server.frontend.service import NO_OVERRIDE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gemlet.serve.server.frontend.http_exchange import Exchange
    from gemlet.serve.server.frontend.service import Service

logger = logging.getLogger(__name__)
TEXT = b"text/plain; charset=utf-8"
MAX_LOG_LINES = 1000
MAX_DIGITS = 9
MAX_FIELDS = 16  # of a query


class Given(NamedTuple):
    """A request as it came. ``regions``: of the client; ``peer``: who that is."""

    method: str
    url: bytes
    body: bytes
    regions: UserRegions
    peer: str


class Asked(msgspec.Struct, frozen=True):
    """A request for a route: what its pattern matched, the query, the body."""

    names: tuple[str, ...]
    query: dict[str, list[str]]
    body: bytes
    regions: UserRegions
    peer: str

    def document(self) -> dict[str, Any]:
        """The body as a JSON object; empty if there is none. Raises Refusal."""
        try:
            return from_json(self.body, dict[str, Any]) if self.body.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal("invalid", f"the body is not a JSON object: {error}") from None


async def respond(service: Service, exchange: Exchange, given: Given) -> None:
    """Answers. Never raises, but for a cancellation."""
    method = given.method
    path, _, query = given.url.decode("latin-1").partition("?")
    allowed: list[str] = []
    try:
        for verb, pattern, route in ROUTES:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if verb == method or (verb == "GET" and method == "HEAD"):
                names = tuple(unquote(name or "") for name in match.groups())
                asked = Asked(names, _fields(query), given.body, given.regions, given.peer)
                await route(service, exchange, asked)
                return
            allowed.append(verb)
        if allowed:
            more = b"Allow: %s\r\n" % ", ".join(allowed).encode()
            exchange.document({"error": f"{path} takes {' and '.join(allowed)}, not {method}"}, 405, more)
        else:
            raise Refusal("unknown", f"there is no {path} here; GET /v2 says what this is")
    except Refusal as refusal:
        exchange.refuse(refusal)
    except Exception as error:
        logger.exception("%s %s failed", method, path)
        exchange.refuse(Refusal("failed", f"{type(error).__name__}: {error}"))


def _fields(query: str) -> dict[str, list[str]]:
    """Raises Refusal."""
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise Refusal("invalid", f"the query has more than {MAX_FIELDS} fields") from None


async def _live(_service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.document({"live": True})


async def _ready(service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.document({"ready": service.ready}, 200 if service.ready else 503)


async def _health(service: Service, exchange: Exchange, _asked: Asked) -> None:
    text = await service.texts.of(documents.health)
    exchange.answer(200 if service.ready else 503, JSON, [text])


async def _server(service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.answer(200, JSON, [await service.texts.of(documents.server_text)])


async def _model(service: Service, exchange: Exchange, asked: Asked) -> None:
    spec = service.model(asked.names[0], asked.names[1])
    exchange.document(documents.model(spec, service.engine.models.versions(spec.name)))


async def _model_ready(service: Service, exchange: Exchange, asked: Asked) -> None:
    ready = service.model_ready(asked.names[0], asked.names[1])
    exchange.document({"name": asked.names[0], "ready": ready}, 200 if ready else 503)


async def _model_config(service: Service, exchange: Exchange, asked: Asked) -> None:
    spec = service.model(asked.names[0], asked.names[1])
    exchange.document(documents.configuration(spec, service.engine.models.versions(spec.name)))


async def _model_stats(service: Service, exchange: Exchange, asked: Asked) -> None:
    spec = service.model(asked.names[0], asked.names[1])
    served = [service.engine.models[spec.label]] if asked.names[1] else service.engine.models.versions(spec.name)
    exchange.document({"model_stats": [documents.statistics(each) for each in served]})


async def _all_stats(service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.answer(200, JSON, [await service.texts.of(documents.all_statistics)])


async def _index(service: Service, exchange: Exchange, asked: Asked) -> None:
    only_ready = asked.document().get("ready") is True
    text = await service.texts.of(documents.index_of_ready if only_ready else documents.index)
    exchange.answer(200, JSON, [text])


async def _load(service: Service, exchange: Exchange, asked: Asked) -> None:
    if asked.document().get("parameters"):
        raise Refusal("unsupported", NO_OVERRIDE)
    await service.load(asked.names[0], asked.peer)
    exchange.document({})


async def _unload(service: Service, exchange: Exchange, asked: Asked) -> None:
    await service.unload(asked.names[0], asked.peer)
    exchange.document({})


async def _region_status(service: Service, exchange: Exchange, asked: Asked) -> None:
    exchange.document(
        [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.nbytes}
            for region in asked.regions.status(SystemRegion, asked.names[0])
        ]
    )


async def _region_register(service: Service, exchange: Exchange, asked: Asked) -> None:
    wanted = asked.document()
    key, offset, nbytes = wanted.get("key"), wanted.get("offset", 0), wanted.get("byte_size")
    if not (isinstance(key, str) and isinstance(offset, int) and isinstance(nbytes, int)):
        raise Refusal("invalid", "a region has key (text), offset and byte_size (numbers)")
    await asked.regions.register(asked.names[0], key, offset, nbytes)
    exchange.document({})


async def _region_unregister(service: Service, exchange: Exchange, asked: Asked) -> None:
    await asked.regions.unregister(SystemRegion, asked.names[0])
    exchange.document({})


async def _device_status(_service: Service, exchange: Exchange, asked: Asked) -> None:
    exchange.document(
        [
            {"name": region.name, "device_id": region.device, "byte_size": region.nbytes}
            for region in asked.regions.status(DeviceRegion, asked.names[0])
        ]
    )


async def _device_register(_service: Service, exchange: Exchange, asked: Asked) -> None:
    wanted = asked.document()
    handle, device, nbytes = wanted.get("raw_handle"), wanted.get("device_id", 0), wanted.get("byte_size")
    text = handle.get("b64") if isinstance(handle, dict) else None
    if not (isinstance(text, str) and isinstance(device, int) and isinstance(nbytes, int)):
        raise Refusal("invalid", "a region has raw_handle.b64 (text), device_id and byte_size (numbers)")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refusal("invalid", f"raw_handle is not base64: {error}") from None
    await asked.regions.register_device(asked.names[0], raw, device, nbytes)
    exchange.document({})


async def _device_unregister(_service: Service, exchange: Exchange, asked: Asked) -> None:
    await asked.regions.unregister(DeviceRegion, asked.names[0])
    exchange.document({})


async def _metrics(service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.answer(200, metrics.CONTENT_TYPE, [await service.texts.of(metrics.render)])


async def _plan(service: Service, exchange: Exchange, _asked: Asked) -> None:
    exchange.document(service.plan())


async def _logs(service: Service, exchange: Exchange, asked: Asked) -> None:
    lines = asked.query.get("lines", ["100"])[0]
    if not (lines.isdecimal() and lines.isascii() and len(lines) <= MAX_DIGITS):
        raise Refusal("invalid", f"lines={lines} is not a number")
    kept = service.logs.last(min(int(lines), MAX_LOG_LINES))
    text = "".join(f"{line}\n" for line in kept).encode()
    if asked.query.get("follow", ["false"])[0] not in {"true", "1", ""} or "follow" not in asked.query:
        exchange.answer(200, TEXT, [text])
        return
    if exchange.head_only:
        exchange.answer(200, TEXT, [])
        return
    exchange.begin(TEXT)
    if text:
        exchange.send(text)
    async for line in service.logs.follow():
        exchange.send(f"{line}\n".encode())
    exchange.end()


_MODEL = r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
_SYSTEM = r"/v2/systemsharedmemory(?:/region/([^/]+))?"
_CUDA = r"/v2/cudasharedmemory(?:/region/([^/]+))?"
ROUTES: tuple[tuple[str, re.Pattern[str], Callable[[Service, Exchange, Asked], Awaitable[None]]], ...] = tuple(
    (verb, re.compile(pattern), route)
    for verb, pattern, route in (
        ("GET", r"/v2/health/live", _live),
        ("GET", r"/v2/health/ready", _ready),
        ("GET", r"/v2/health/?", _health),
        ("GET", r"/v2/?", _server),
        ("GET", r"/v2/models/stats", _all_stats),
        ("GET", _MODEL, _model),
        ("GET", _MODEL + "/ready", _model_ready),
        ("GET", _MODEL + "/config", _model_config),
        ("GET", _MODEL + "/stats", _model_stats),
        ("POST", r"/v2/repository/index", _index),
        ("POST", r"/v2/repository/models/([^/]+)/load", _load),
        ("POST", r"/v2/repository/models/([^/]+)/unload", _unload),
        ("GET", _SYSTEM + "/status", _region_status),
        ("POST", r"/v2/systemsharedmemory/region/([^/]+)/register", _region_register),
        ("POST", _SYSTEM + "/unregister", _region_unregister),
        ("GET", _CUDA + "/status", _device_status),
        ("POST", r"/v2/cudasharedmemory/region/([^/]+)/register", _device_register),
        ("POST", _CUDA + "/unregister", _device_unregister),
        ("GET", r"/v2/plan", _plan),
        ("GET", r"/v2/logs", _logs),
        ("GET", r"/metrics", _metrics),
    )
)
