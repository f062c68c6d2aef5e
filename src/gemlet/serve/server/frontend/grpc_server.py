"""inference.GRPCInferenceService and grpc.health.v1.Health: the same as over HTTP, for clients that speak gRPC."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Call, Refusal
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.server.frontend import (
    connections,
    grpc_procedures,
    grpc_wire,
    health,
    infer_messages,
    intake,
    limits,
    pieces,
    raw_messages,
    request_checks,
    unpacking,
)
from gemlet.serve.server.frontend.access import client_of
from gemlet.serve.server.frontend.grpc_connection import GrpcConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from gemlet.inference_protocol.tensors import Buffer
    from gemlet.serve.dispatch.call import Tensor
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.access import Tokens
    from gemlet.serve.server.frontend.answer_form import Finished, Form, Parameters
    from gemlet.serve.server.frontend.grpc_call import GrpcCall, Handler
    from gemlet.serve.server.frontend.limits import Limits
    from gemlet.serve.server.frontend.service import Service

SERVICE = "inference.GRPCInferenceService"
STREAM_BEHIND = 256  # requests of one stream whose answers are not sent


class GrpcServer(connections.Server):
    """``tokens``: who may ask; None: everybody who can connect."""

    def __init__(self, service: Service, given: Limits | None = None, tokens: Tokens | None = None) -> None:
        super().__init__(service, GrpcConnection, given, tokens)
        control = grpc_procedures.Procedures(service)
        found: dict[str, Callable[[GrpcCall], Handler]] = {
            f"{SERVICE}/{name}": partial(Control, partial(control, name)) for name in grpc_procedures.NAMES
        }
        found[f"{SERVICE}/ModelInfer"] = partial(Infer, self)
        found[f"{SERVICE}/ModelStreamInfer"] = partial(InferStream, self)
        for name, procedure in health.procedures(service, SERVICE).items():
            found[f"{health.SERVICE}/{name}"] = partial(Control, procedure, endless=name == health.ENDLESS)
        self.procedures = {f"/{path}".encode(): begin for path, begin in found.items()}


class Single:
    """A call of one message."""

    quiet = endless = full = False

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._message: tuple[Buffer, bytes] | None = None

    @property
    def kept_bytes(self) -> int:
        return grpc_wire.PREFIX_BYTES + len(self._message[0]) if self._message is not None else 0

    def message(self, data: Buffer, encoding: bytes) -> None:
        if self._message is not None:
            self._call.refuse(Refusal("invalid", "expected one message"))
        self._message = data, encoding

    def ended(self) -> None:
        message, self._message = self._message, None
        if message is None:
            self._call.refuse(Refusal("invalid", "expected one message, and none came"))
        else:
            self.act(*message)

    def act(self, data: Buffer, encoding: bytes) -> None:
        """Answers the message."""
        raise NotImplementedError

    def sent(self) -> None:
        pass

    def gone(self) -> None:
        pass


class Control(Single):
    """A call that a task answers."""

    def __init__(
        self, answer: Callable[[GrpcCall, bytes], Coroutine[Any, Any, None]], call: GrpcCall, *, endless: bool = False
    ) -> None:
        super().__init__(call)
        self._answer = answer
        self._endless = endless

    def act(self, data: Buffer, encoding: bytes) -> None:
        try:
            if len(data) > limits.CONTROL_BYTES:
                raise Refusal("invalid", f"the message has {len(data)} bytes: expected at most {limits.CONTROL_BYTES}")
            plain = unpacking.inflate(data, encoding, limits.CONTROL_BYTES) if encoding else bytes(data)
        except Refusal as refusal:
            self._call.refuse(refusal)
            return
        self.quiet, self.endless = True, self._endless  # what does not end by itself waits for news
        self._call.in_turn(partial(self._answer, self._call, plain), len(plain))


class Infer(Single):
    """ModelInfer."""

    def __init__(self, server: GrpcServer, call: GrpcCall) -> None:
        super().__init__(call)
        self._server = server
        self._asking: Asking | None = None

    def act(self, data: Buffer, encoding: bytes) -> None:
        self._asking = Asking(self._server, self._call, self)
        self._asking.take(data, encoding)

    def gone(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def answered(self, _asking: Asking, answer: list[Buffer]) -> None:
        self._asking = None  # which knows this
        self._call.respond(answer)

    def refused(self, _asking: Asking, refusal: Refusal) -> None:
        self._asking = None
        self._call.refuse(refusal)


class Asker(Protocol):
    """Who sends the answer to an inference request. One of these is called."""

    def answered(self, asking: Asking, answer: list[Buffer]) -> None: ...
    def refused(self, asking: Asking, refusal: Refusal) -> None: ...


class Asking:
    """An inference request, from its bytes to its answer, which ``asker`` gets and knows this no more."""

    __slots__ = ("_arrived", "_asker", "_call", "_grpc", "_server", "id")

    def __init__(self, server: GrpcServer, grpc: GrpcCall, asker: Asker) -> None:
        self.id = ""
        self._asker = asker
        self._server = server
        self._grpc = grpc
        self._arrived = now_ms()
        self._call: Call | None = None  # while the engine has it

    def take(self, data: Buffer, encoding: bytes) -> None:
        """What takes long to read is read in another process."""
        try:
            if encoding and len(data) <= limits.HERE_BYTES:
                with contextlib.suppress(unpacking.TooLarge):
                    data, encoding = unpacking.inflate(data, encoding, limits.HERE_BYTES), b""
            parsed = raw_messages.parse(data) if not encoding else None
            if parsed is not None:
                self._ask(*parsed, len(data))
            elif encoding or (divided := infer_messages.divided(data, limits.HERE_BYTES)) is None:
                self._grpc.later(self._take_large(data, encoding))
            else:
                self._read(divided, len(data))
        except Exception as error:  # noqa: BLE001  it is the answer
            self._asker.refused(self, intake.refusal_of(error))

    def cancel(self) -> None:
        """Nobody waits for its answer."""
        call, self._call = self._call, None
        if call is not None:
            self._server.service.engine.cancel(call)

    async def _take_large(self, data: Buffer, encoding: bytes) -> None:
        most, nbytes = self._server.limits.request_bytes, len(data)
        self._grpc.holds(nbytes)
        try:
            processes, peer = self._server.unpacking, self._grpc.connection.peer
            divided = await processes.inflating(peer, unpacking.unpack_message, data, encoding, most)
            self._read(divided, checked=True)
        except Exception as error:  # noqa: BLE001  it is the answer
            self._asker.refused(self, intake.refusal_of(error))
        finally:
            self._grpc.holds(-nbytes)

    def _read(self, divided: infer_messages.Divided, request_bytes: int = 0, *, checked: bool = False) -> None:
        """``checked``: in another process. Raises Refusal."""
        request = infer_messages.read(divided.structure)
        self.id = request.id
        given, form, parameters = infer_messages.parse(request, divided.raw, self._grpc.connection.regions)
        if checked:
            request_checks.are_checked(given)
        self._ask(given, form, parameters, request_bytes)

    def _ask(self, given: list[Tensor], form: Form, parameters: Parameters, request_bytes: int) -> None:
        """Raises Refusal."""
        self.id = form.id
        service, regions = self._server.service, self._grpc.connection.regions

        def write(spec: ModelSpec, outputs: list[Tensor], finished: Mapping[str, Finished]) -> None:
            answer = infer_messages.render(form, spec, outputs, finished)
            self._call = None
            self._server.holdings.check(sum(map(len, answer)))
            self._asker.answered(self, answer)

        def refuse(refusal: Refusal) -> None:
            self._call = None
            self._asker.refused(self, refusal)

        check = self._server.holdings.check
        peer, later, holds = self._grpc.connection.peer, self._grpc.later, self._grpc.holds
        reply = intake.Reply(service, regions, peer, form, False, write, refuse, later, holds, check)
        trace, client = self._grpc.trace, client_of(peer, self._grpc.token)
        call = Call(form.model, given, reply, self._arrived, form.version, id=form.id, trace=trace, client=client)
        call.request_bytes = request_bytes
        rest = intake.check(service, regions, form, parameters, call, peer=peer)
        remaining_ms = self._grpc.remaining_ms
        if remaining_ms is not None and (not call.timeout_ms or remaining_ms < call.timeout_ms):
            call.timeout_ms = max(0.001, remaining_ms)
        if rest is None:
            self._submit(call)
        else:
            self._grpc.later(self._submit_after(call, rest))

    async def _submit_after(self, call: Call, rest: intake.Rest) -> None:
        nbytes = sum([len(tensor.data) for tensor in call.inputs])
        self._grpc.holds(nbytes)
        try:
            await rest()
        except Exception as error:  # noqa: BLE001  it is the answer
            self._asker.refused(self, intake.refusal_of(error))
        else:
            self._submit(call)
        finally:
            self._grpc.holds(-nbytes)

    def _submit(self, call: Call) -> None:
        self._call = call
        self._server.service.engine.infer(call)


class InferStream:
    """ModelStreamInfer: answers come in the order of their requests, as Triton's do. Clients go by that: a request may
    have no id. One that is ready before its turn waits here, and counts among what the client holds."""

    kept_bytes = 0

    def __init__(self, server: GrpcServer, call: GrpcCall) -> None:
        self._server = server
        self._call = call
        self._asking: dict[Asking, list[Buffer] | None] = {}  # in their order, with answers that wait for others
        self._behind = 0  # requests whose answers are not sent: a client that only sends would fill the memory
        self._ended = False

    @property
    def quiet(self) -> bool:
        return not self._behind

    @property
    def endless(self) -> bool:
        return self.quiet

    @property
    def full(self) -> bool:
        return self._behind >= STREAM_BEHIND

    def message(self, data: Buffer, encoding: bytes) -> None:
        self._behind += 1
        asking = Asking(self._server, self._call, self)
        self._asking[asking] = None
        asking.take(data, encoding)

    def ended(self) -> None:
        self._ended = True
        self._end()

    def sent(self) -> None:
        if self.full:
            self._call.connection.look_later(self._call)
        self._behind -= 1

    def gone(self) -> None:
        given_up, self._asking = self._asking, {}
        for asking, answer in given_up.items():
            if answer is None:
                asking.cancel()
            else:
                self._call.holds(-_bytes(answer))

    def answered(self, asking: Asking, answer: list[Buffer]) -> None:
        self._send(asking, infer_messages.in_stream(answer))

    def refused(self, asking: Asking, refusal: Refusal) -> None:
        whole = messages.ModelStreamInferResponse(error_message=grpc_wire.shortened(refusal.message))
        named = messages.ModelInferResponse(id=asking.id).SerializeToString()
        self._send(asking, [whole.SerializeToString(), *infer_messages.in_stream([named])])

    def _send(self, asking: Asking, answer: list[Buffer]) -> None:
        if asking not in self._asking:
            return  # nobody waits for it
        if next(iter(self._asking)) is not asking:
            # Small parts are the executor's memory, which others get from here on.
            self._asking[asking] = own = pieces.joined(answer)
            self._call.holds(_bytes(own))
            return
        del self._asking[asking]
        self._call.send(answer)
        while self._asking:
            following = next(iter(self._asking))
            waiting = self._asking[following]
            if waiting is None:
                break
            del self._asking[following]
            self._call.holds(-_bytes(waiting))
            self._call.send(waiting)
        self._end()

    def _end(self) -> None:
        if self._ended and not self._asking:
            self._call.end()


def _bytes(answer: list[Buffer]) -> int:
    return sum([len(piece) for piece in answer])
