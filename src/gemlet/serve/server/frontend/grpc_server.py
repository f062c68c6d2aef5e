"""inference.GRPCInferenceService: the same as over HTTP, for clients that speak gRPC."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Call, Refusal
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.server.frontend import (
    access,
    documents,
    health,
    infer_json,
    infer_messages,
    intake,
    limits,
    peers,
    unpacking,
)
from gemlet.serve.server.frontend.limits import Limits
from gemlet.serve.server.frontend.regions import CUDA
from gemlet.serve.server.frontend.room import Room, peer_of
from gemlet.serve.server.frontend.status import GRPC
from gemlet.serve.server.repository import triton_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    from gemlet.serve.dispatch.call import Tensor
    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.dispatch.statistics import Span
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.access import Tokens
    from gemlet.serve.server.frontend.regions import UserRegions
    from gemlet.serve.server.frontend.service import Service

SERVICE = "inference.GRPCInferenceService"
MAX_STREAMS = 128  # of one connection; further requests wait at the client
MAX_ANSWER_BYTES = 512 * 1024**2
GRACE_S = 1.0  # for answers on their way out
PROCEDURES = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "ModelInfer", "ModelStreamInfer", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
)  # fmt: skip
STREAM_BEHIND = 256  # requests of one stream whose answers are not sent
Context = Any  # grpc.aio.ServicerContext, generic over messages


class GrpcServer:
    """Listens; one method a remote procedure. ``tokens``: who may ask; None: everybody who can connect."""

    def __init__(self, service: Service, given: Limits | None = None, tokens: Tokens | None = None) -> None:
        self._service = service
        self._limits = given or Limits()
        self._here: tuple[str, int] | None = None
        self._room = Room(self._limits.held_bytes)  # for messages that another process reads
        self._tasks: set[asyncio.Task[None]] = set()
        options = [
            ("grpc.max_receive_message_length", self._limits.request_bytes),
            ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
            ("grpc.max_metadata_size", limits.HEADER_BYTES),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.max_allowed_incoming_connections", self._limits.connections_of_each()),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.HEADER_S)),
            ("grpc.max_connection_idle_ms", int(1000 * limits.GRPC_IDLE_S)),
            ("grpc.keepalive_time_ms", int(1000 * limits.GRPC_SILENT_S)),
            ("grpc.keepalive_timeout_ms", int(1000 * limits.CLOSE_S)),
            ("grpc.so_reuseport", 0),  # a port in use is an error
        ]
        guards = [_Guard(tokens)] if tokens is not None else []
        self._server = grpc.aio.server(interceptors=guards, options=options)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, self._handlers()),
                grpc.method_handlers_generic_handler(health.SERVICE, health.handlers(service, SERVICE)),
            )
        )

    async def listen(self, host: str, port: int, tls: Any = None) -> int:
        """The port. Raises OSError if it is not to be had."""
        bound = await self._listen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls)
        self._here = host, bound
        return bound

    async def listen_at(self, path: str) -> None:
        """On a Unix socket, for this user and root. Raises OSError."""
        before = os.umask(0o177)  # the socket is made by gRPC, and connections are taken from then on
        try:
            await self._listen(f"unix:{path}", None)
        finally:
            os.umask(before)

    async def _listen(self, address: str, tls: Any) -> int:
        try:
            if tls is not None:
                bound = self._server.add_secure_port(address, tls)
            else:
                bound = self._server.add_insecure_port(address)
        except RuntimeError:  # grpc does not say why
            bound = 0
        if not bound:
            raise OSError(errno.EADDRINUSE, "the address is in use or not of this machine")
        await self._server.start()
        return bound

    async def close(self) -> None:
        """Ends after the answers that are under way."""
        await self._server.stop(GRACE_S)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name in PROCEDURES:
            if name not in {"ModelInfer", "ModelStreamInfer"}:
                answer = getattr(self, re.sub("([A-Z])", r"_\1", name).lower())
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._refusing(answer, getattr(messages, f"{name}Request"), about_memory="SharedMemory" in name),
                    response_serializer=_serialized,
                )
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer, response_serializer=_serialized)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=_serialized
        )
        return handlers

    def _refusing(
        self, answer: Callable[..., Awaitable[Any]], kind: Any, *, about_memory: bool
    ) -> Callable[[bytes, Context], Awaitable[Any]]:
        """A procedure that takes messages of this kind, and whose Refusal is a status."""

        async def handler(data: bytes, context: Context) -> Any:
            try:
                if len(data) > limits.CONTROL_BYTES:
                    raise Refusal(
                        "invalid", f"the message has {len(data)} bytes: expected at most {limits.CONTROL_BYTES}"
                    )
                request = kind.FromString(data)
                return await (answer(request, self._regions(context)) if about_memory else answer(request))
            except DecodeError as error:
                await _abort(context, Refusal("invalid", f"not a {kind.__name__}: {error}"))
            except Refusal as refusal:
                await _abort(context, refusal)

        return handler

    # Inference

    async def _infer(self, data: bytes, context: Context) -> messages.ModelInferResponse:
        arrived = now_ms()
        done: asyncio.Future[messages.ModelInferResponse | Refusal] = asyncio.get_running_loop().create_future()

        def answered(result: messages.ModelInferResponse | Refusal) -> None:
            if not done.done():  # the client may have gone
                done.set_result(result.alone() if isinstance(result, Refusal) else result)

        remaining = context.time_remaining()
        try:
            request = await self._read(data, context.peer())
        except Exception as error:  # noqa: BLE001  it is the answer
            await _abort(context, intake.refusal_of(error).alone())
        del data
        regions = self._regions(context)
        asking = _Asking(arrived, regions, answered, None if remaining is None else 1000 * remaining)
        call = await self._ask(request, asking)
        del request
        try:
            result = await done
        except asyncio.CancelledError:
            if call is not None:
                self._service.engine.cancel(call)
            raise
        finally:
            del call  # gRPC keeps what is raised here, and with it this frame
        if isinstance(result, Refusal):
            await _abort(context, result)
        assert not isinstance(result, Refusal)
        return result

    async def _stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[messages.ModelStreamInferResponse]:
        """Answers come as they are ready; a request's id tells whose they are."""
        ready: asyncio.Queue[messages.ModelStreamInferResponse | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_BEHIND)
        waiting = 0
        ended = False
        regions = self._regions(context)
        calls: dict[int, Call] = {}

        def answered(number: int, request_id: str, result: messages.ModelInferResponse | Refusal) -> None:
            nonlocal waiting
            waiting -= 1
            calls.pop(number, None)
            answer = messages.ModelStreamInferResponse()
            if isinstance(result, Refusal):
                answer.error_message = result.message
                answer.infer_response.id = request_id
            else:
                answer.infer_response.CopyFrom(result)
            answer.infer_response.parameters["triton_final_response"].bool_param = True  # there is one for each request
            ready.put_nowait(answer)
            if ended and not waiting:
                ready.put_nowait(None)

        async def read() -> None:
            nonlocal waiting, ended
            number = 0
            try:
                async for data in requests:
                    await room.acquire()
                    waiting += 1
                    number += 1
                    arrived = now_ms()
                    try:
                        request = await self._read(data, context.peer())
                    except Exception as error:  # noqa: BLE001  it is the answer, for which the stream waits
                        answered(number, "", intake.refusal_of(error))
                        continue
                    keep = partial(calls.__setitem__, number)
                    await self._ask(
                        request, _Asking(arrived, regions, partial(answered, number, request.id), None, keep)
                    )
            finally:
                ended = True
                if not waiting:
                    ready.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await ready.get()) is not None:
                yield answer
                room.release()  # not before: a client that only sends would fill the memory with its answers
        finally:
            reader.cancel()
            for call in calls.values():
                self._service.engine.cancel(call)

    def _regions(self, context: Context) -> UserRegions:
        return self._service.regions.of(lambda: peers.of_grpc(context.peer(), self._here))

    async def _read(self, data: bytes, peer: str) -> messages.ModelInferRequest:
        """The message; one that is costly to read is read in another process first. Raises Refusal."""
        if infer_messages.structure(data, limits.HERE_BYTES) > limits.HERE_BYTES:
            data = await self._unpacked(data, peer)
        try:
            return messages.ModelInferRequest.FromString(data)
        except DecodeError as error:
            raise Refusal("invalid", f"not a ModelInferRequest: {error}") from None

    async def _unpacked(self, data: bytes, peer: str) -> bytes:
        nbytes, most = len(data), self._limits.request_bytes
        work = asyncio.ensure_future(self._service.unpacking(nbytes, unpacking.unpack_message, data, most))
        guest = self._room.enter(peer_of(peer), nbytes, work.cancel)
        task = asyncio.current_task()
        assert task is not None
        try:
            return await work
        except asyncio.CancelledError:
            if guest.gone and not task.cancelling():
                told = f"messages of {self._room.total} bytes wait to be read, and nobody has more of them"
                raise Refusal("overload", told, retry_s=1) from None
            raise
        finally:
            self._room.leave(guest)

    async def _ask(self, request: messages.ModelInferRequest, asking: _Asking) -> Call | None:
        """Hands a request to the engine; ``asking.answered`` is called once. The call, or None if there is none."""
        engine, regions, answered = self._service.engine, asking.regions, asking.answered

        def write(spec: ModelSpec, outputs: list[Tensor], finished: Mapping[str, infer_json.Finished]) -> None:
            answered(infer_messages.render(form, spec, outputs, regions, finished))

        try:
            given, form, parameters = infer_messages.parse(request, regions)
            reply = intake.Reply(self._service, regions, form, False, write, answered, self._later)
            call = Call(form.model, given, reply, asking.arrived, form.version, id=form.id)
            rest = intake.check(self._service, regions, form, parameters, call)
            if rest is not None:
                await rest()
        except Exception as error:  # noqa: BLE001  it is the answer, for which a stream waits
            answered(intake.refusal_of(error))
            return None
        remaining_ms = asking.remaining_ms
        if remaining_ms is not None and (not call.timeout_ms or remaining_ms < call.timeout_ms):
            call.timeout_ms = max(0.001, remaining_ms)
        asking.keep(call)
        engine.infer(call)
        return call

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Health and metadata

    async def _server_live(self, _request: Any) -> messages.ServerLiveResponse:
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, _request: Any) -> messages.ServerReadyResponse:
        return messages.ServerReadyResponse(ready=self._service.ready)

    async def _model_ready(self, request: messages.ModelReadyRequest) -> messages.ModelReadyResponse:
        try:
            ready = self._service.model_ready(request.name, request.version)
        except Refusal:
            ready = False
        return messages.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _request: Any) -> messages.ServerMetadataResponse:
        told = documents.server(self._service)
        return messages.ServerMetadataResponse(
            name=told["name"], version=told["version"], extensions=told["extensions"]
        )

    async def _model_metadata(self, request: messages.ModelMetadataRequest) -> messages.ModelMetadataResponse:
        spec = self._service.model(request.name, request.version)
        return messages.ModelMetadataResponse(**documents.model(spec, self._service.engine.models.versions(spec.name)))

    async def _model_config(self, request: messages.ModelConfigRequest) -> messages.ModelConfigResponse:
        spec = self._service.model(request.name, request.version)
        answer = messages.ModelConfigResponse()
        versions = [served.spec.version for served in self._service.engine.models.versions(spec.name)]
        answer.config.CopyFrom(triton_config.message_of(spec, versions))
        return answer

    async def _model_statistics(self, request: messages.ModelStatisticsRequest) -> messages.ModelStatisticsResponse:
        engine = self._service.engine
        found = list(engine.models.values())
        if request.name:
            spec = self._service.model(request.name, request.version)
            found = [engine.models[spec.label]] if request.version else engine.models.versions(spec.name)
        return messages.ModelStatisticsResponse(model_stats=[_statistics(served) for served in found])

    # Repository

    async def _repository_index(self, request: messages.RepositoryIndexRequest) -> messages.RepositoryIndexResponse:
        answer = messages.RepositoryIndexResponse()
        for entry in self._service.index():
            if entry.state == "READY" or not request.ready:
                answer.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return answer

    async def _repository_model_load(
        self, request: messages.RepositoryModelLoadRequest
    ) -> messages.RepositoryModelLoadResponse:
        if request.parameters:
            raise Refusal("unsupported", "change the files in the repository instead: a model is loaded as they say")
        await self._service.load(request.model_name)
        return messages.RepositoryModelLoadResponse()

    async def _repository_model_unload(
        self, request: messages.RepositoryModelUnloadRequest
    ) -> messages.RepositoryModelUnloadResponse:
        await self._service.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()

    # Shared memory

    async def _system_shared_memory_status(
        self, request: messages.SystemSharedMemoryStatusRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryStatusResponse:
        answer = messages.SystemSharedMemoryStatusResponse()
        for region in regions.status(request.name):
            one = answer.regions[region.name]
            one.name, one.key, one.offset, one.byte_size = region.name, region.key, region.offset, region.nbytes
        return answer

    async def _system_shared_memory_register(
        self, request: messages.SystemSharedMemoryRegisterRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryRegisterResponse:
        regions.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def _system_shared_memory_unregister(
        self, request: messages.SystemSharedMemoryUnregisterRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        regions.unregister(request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def _cuda_shared_memory_status(
        self, _request: Any, _regions: UserRegions
    ) -> messages.CudaSharedMemoryStatusResponse:
        return messages.CudaSharedMemoryStatusResponse()

    async def _cuda_shared_memory_register(self, _request: Any, _regions: UserRegions) -> Any:
        raise Refusal("unsupported", CUDA)

    async def _cuda_shared_memory_unregister(
        self, _request: Any, _regions: UserRegions
    ) -> messages.CudaSharedMemoryUnregisterResponse:
        return messages.CudaSharedMemoryUnregisterResponse()  # there is none, and clients ask for it before they begin


@dataclass(frozen=True, slots=True)
class _Asking:
    """Of an inference request beside itself: when it came, whose regions it may use, where its answer goes."""

    arrived: float
    regions: UserRegions
    answered: Callable[[messages.ModelInferResponse | Refusal], None]
    remaining_ms: float | None
    keep: Callable[[Call], None] = lambda _: None  # called with what the engine gets


class _Guard(grpc.aio.ServerInterceptor):
    """Ends calls without a token before their message is read."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        given = next((value for key, value in details.invocation_metadata if key == "authorization"), "")
        token = given.encode() if isinstance(given, str) else given
        if details.method.rpartition("/")[2] in access.OPEN_PROCEDURES or self._tokens.allows(token):
            return await continuation(details)
        return self._refusal

    @staticmethod
    async def _refuse(_requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        message = "expected `authorization: Bearer` in the metadata with one of the server's tokens"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
        yield b""


async def _abort(context: Context, refusal: Refusal) -> None:
    """Never returns."""
    told: list[tuple[str, str]] = [("gemlet-reason", refusal.reason)]
    if refusal.retry_s is not None:
        told.append(("retry-after", str(refusal.retry_s)))
    await context.abort(grpc.StatusCode[GRPC[refusal.reason]], refusal.message, tuple(told))


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _statistics(served: ServedModel) -> messages.ModelStatistics:
    counted = served.statistics
    answer = messages.ModelStatistics(
        name=served.spec.name,
        version=str(served.spec.version),
        last_inference=counted.last_unix_ms,
        inference_count=counted.rows,
        execution_count=sum(span.count for span in counted.batches.values()),
    )
    for name, span in (
        ("success", counted.success), ("fail", counted.failure), ("queue", counted.queue),
        ("compute_infer", counted.compute), ("compute_input", counted.copies), ("compute_output", counted.copies),
    ):  # fmt: skip
        _fill(getattr(answer.inference_stats, name), span)
    for size, span in sorted(counted.batches.items()):
        of_size = answer.batch_stats.add(batch_size=size)
        _fill(of_size.compute_infer, span)
        of_size.compute_input.count = of_size.compute_output.count = span.count
    return answer


def _fill(message: Any, span: Span) -> None:
    message.count, message.ns = span.count, int(span.ms * 1e6)
