"""An inference request over HTTP: read, handed to the engine, answered.

It is handed over where its last byte is parsed, without a task, and its answer is written when the engine calls back.
What would take long by its size alone is a task that waits for another process (unpacking.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gemlet.serve.dispatch.call import Call, Refusal
from gemlet.serve.server.frontend import answer_form, connections, infer_json, intake, limits, regions, unpacking
from gemlet.serve.server.frontend.access import client_of
from gemlet.serve.server.frontend.http_exchange import JSON, Exchange

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.call import Tensor
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.answer_form import Form

    Target = tuple[str, str]  # model and version
    Parsed = tuple[list[Tensor], Form, answer_form.Parameters]

BINARY = b"application/octet-stream"


class Server(connections.Known, Protocol):
    """What is known here of the server."""

    unpacking: unpacking.Unpacking


class Connection(Protocol):
    """Where a request came by; http_connection.py is it. It is passed along and kept by nothing."""

    regions: regions.UserRegions
    peer: str

    @property
    def server(self) -> Server: ...
    def later(self, work: Coroutine[Any, Any, None]) -> None: ...
    def waits(self, exchange: Exchange, nbytes: int) -> None: ...
    def waits_elsewhere(self, nbytes: int) -> None: ...


def read(
    connection: Connection, exchange: Exchange, target: Target, body: Buffer, *, encoding: bytes, header: int | None
) -> None:
    """Takes a whole request; ``header``: bytes of its JSON, if it says so. Raises what is its answer."""
    if header == 0 and not encoding:
        _infer(connection, exchange, target, infer_json.raw(body, _spec(connection, target)), len(body))
    elif encoding or infer_json.json_end(body, header) > limits.HERE_BYTES:
        connection.later(_infer_large(connection, exchange, target, body, encoding=encoding, header=header))
    else:
        _infer(connection, exchange, target, infer_json.parse(body, header, connection.regions), len(body))


def _spec(connection: Connection, target: Target) -> ModelSpec:
    """Raises Refusal."""
    models = connection.server.service.engine.models
    served = models.find(*target)
    if served is None:
        raise models.unknown(*target)
    return served.spec


async def _infer_large(
    connection: Connection, exchange: Exchange, target: Target, body: Buffer, *, encoding: bytes, header: int | None
) -> None:
    """As _infer(), of a request that is read in another process."""
    nbytes, server = len(body), connection.server
    connection.waits_elsewhere(nbytes)
    try:
        asked, tail = await server.unpacking.inflating(
            connection.peer, unpacking.unpack, body, encoding, server.limits.request_bytes, header
        )
        _infer(connection, exchange, target, infer_json.assemble(asked, memoryview(tail), connection.regions))
    except Exception as error:  # noqa: BLE001  it is the answer
        exchange.refuse(intake.refusal_of(error))
    finally:
        connection.waits_elsewhere(-nbytes)


def _infer(connection: Connection, exchange: Exchange, target: Target, parsed: Parsed, request_bytes: int = 0) -> None:
    """Raises Refusal."""
    model, version = target
    given, form, parameters = parsed
    form.model, form.version = model, version
    service, known = connection.server.service, connection.regions
    write, refuse = partial(_write, (connection, exchange), form), partial(_refuse, exchange)
    check = connection.server.holdings.check
    peer, holds = connection.peer, connection.waits_elsewhere
    reply = intake.Reply(service, known, peer, form, True, write, refuse, connection.later, holds, check)
    client = client_of(peer, exchange.token)
    call = Call(model, given, reply, exchange.arrived, version, id=form.id, trace=exchange.trace, client=client)
    call.request_bytes = request_bytes
    connection.waits(exchange, sum([tensor.nbytes for tensor in regions.unread(given)]))
    rest = intake.check(service, known, form, parameters, call, peer=peer)
    if rest is None:
        _submit(connection, exchange, call)
    else:
        connection.later(_infer_after(connection, exchange, call, rest))


async def _infer_after(connection: Connection, exchange: Exchange, call: Call, rest: intake.Rest) -> None:
    nbytes = sum([len(tensor.data) for tensor in call.inputs])
    connection.waits_elsewhere(nbytes)
    try:
        await rest()
    except Exception as error:  # noqa: BLE001  it is the answer
        exchange.refuse(intake.refusal_of(error))
    else:
        _submit(connection, exchange, call)
    finally:
        connection.waits_elsewhere(-nbytes)


def _submit(connection: Connection, exchange: Exchange, call: Call) -> None:
    exchange.call = call
    connection.server.service.engine.infer(call)


def _write(
    to: tuple[Connection, Exchange],
    form: Form,
    spec: ModelSpec,
    outputs: list[Tensor],
    finished: Mapping[str, answer_form.Finished],
) -> None:
    connection, exchange = to
    exchange.call = None
    json, binary = infer_json.render(form, spec, outputs, finished)
    length = len(json[0]) if len(json) == 1 else sum([len(part) for part in json])
    connection.server.holdings.check(length + sum([len(part) for part in binary]))
    if binary:
        exchange.answer(200, BINARY, [*json, *binary], b"Inference-Header-Content-Length: %d\r\n" % length)
    else:
        exchange.answer(200, JSON, json)


def _refuse(exchange: Exchange, refusal: Refusal) -> None:
    exchange.call = None
    exchange.refuse(refusal)
