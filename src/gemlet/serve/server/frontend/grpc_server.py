"""inference.GRPCInferenceService: the same as over HTTP, for clients that speak gRPC."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Call, Refusal
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.server.frontend import documents, infer_json, infer_messages
from gemlet.serve.server.frontend.regions import CUDA
from gemlet.serve.server.frontend.status import GRPC
from gemlet.serve.server.repository import triton_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gemlet.serve.dispatch.call import Tensor
    from gemlet.serve.dispatch.engine import ServedModel
    from gemlet.serve.dispatch.statistics import Span
    from gemlet.serve.server.frontend.service import Service

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
MAX_MESSAGE_BYTES = 512 * 1024**2
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
    """Listens; one method a remote procedure."""

    def __init__(self, service: Service) -> None:
        self._service = service
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a port in use is an error
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))

    async def listen(self, host: str, port: int) -> int:
        """The port. Raises OSError if it is not to be had."""
        try:
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
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
        handlers = {}
        for name in PROCEDURES:
            if name not in {"ModelInfer", "ModelStreamInfer"}:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    _refusing(getattr(self, re.sub("([A-Z])", r"_\1", name).lower())),
                    request_deserializer=getattr(messages, f"{name}Request").FromString,
                    response_serializer=_serialized,
                )
        read = messages.ModelInferRequest.FromString
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
            self._infer, request_deserializer=read, response_serializer=_serialized
        )
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, request_deserializer=read, response_serializer=_serialized
        )
        return handlers

    # Inference

    async def _infer(self, request: messages.ModelInferRequest, context: Context) -> messages.ModelInferResponse:
        done: asyncio.Future[messages.ModelInferResponse | Refusal] = asyncio.get_running_loop().create_future()

        def answered(result: messages.ModelInferResponse | Refusal) -> None:
            if not done.done():  # the client may have gone
                done.set_result(result)

        remaining = context.time_remaining()
        self._ask(request, answered, None if remaining is None else 1000 * remaining)
        result = await done
        if isinstance(result, Refusal):
            await _abort(context, result)
        assert not isinstance(result, Refusal)
        return result

    async def _stream(
        self, requests: AsyncIterator[messages.ModelInferRequest], _context: Context
    ) -> AsyncIterator[messages.ModelStreamInferResponse]:
        """Answers come as they are ready; a request's id tells whose they are."""
        ready: asyncio.Queue[messages.ModelStreamInferResponse | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_BEHIND)
        waiting = 0
        ended = False

        def answered(request_id: str, result: messages.ModelInferResponse | Refusal) -> None:
            nonlocal waiting
            waiting -= 1
            answer = messages.ModelStreamInferResponse()
            if isinstance(result, Refusal):
                answer.error_message = result.message
                answer.infer_response.id = request_id
            else:
                answer.infer_response.CopyFrom(result)
            ready.put_nowait(answer)
            if ended and not waiting:
                ready.put_nowait(None)

        async def read() -> None:
            nonlocal waiting, ended
            try:
                async for request in requests:
                    await room.acquire()
                    waiting += 1
                    self._ask(request, lambda result, name=request.id: answered(name, result), None)  # type: ignore[misc]
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

    def _ask(
        self,
        request: messages.ModelInferRequest,
        answered: Callable[[messages.ModelInferResponse | Refusal], None],
        remaining_ms: float | None,
    ) -> None:
        """Hands a request to the engine; ``answered`` is called once."""
        engine, regions = self._service.engine, self._service.regions

        def answer(result: list[Tensor] | Refusal) -> None:
            if isinstance(result, Refusal):
                answered(result)
                return
            try:
                spec = self._service.model(form.model, form.version)
                answered(infer_messages.render(form, spec, infer_json.chosen(form, result), regions))
            except Refusal as refusal:
                answered(refusal)
            except Exception as error:  # an output that is gone since a model was reloaded
                logger.exception("an answer of %s cannot be written", form.model)
                answered(Refusal("failed", f"{type(error).__name__}: {error}"))

        try:
            given, form, parameters = infer_messages.parse(request, regions)
            call = Call(form.model, given, answer, now_ms(), form.version)
            infer_json.options(parameters, call)
            if remaining_ms is not None and (not call.timeout_ms or remaining_ms < call.timeout_ms):
                call.timeout_ms = max(0.001, remaining_ms)
            if form.outputs is not None and form.model in engine.models:
                infer_json.check_outputs(form, engine.models[form.model].spec)
        except Refusal as refusal:
            answered(refusal)
            return
        engine.infer(call)

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
        return messages.ModelMetadataResponse(**documents.model(self._service.model(request.name, request.version)))

    async def _model_config(self, request: messages.ModelConfigRequest) -> messages.ModelConfigResponse:
        spec = self._service.model(request.name, request.version)
        answer = messages.ModelConfigResponse()
        answer.config.CopyFrom(triton_config.message_of(spec))
        return answer

    async def _model_statistics(self, request: messages.ModelStatisticsRequest) -> messages.ModelStatisticsResponse:
        models = self._service.engine.models
        if request.name:
            return messages.ModelStatisticsResponse(
                model_stats=[_statistics(models[self._service.model(request.name, request.version).name])]
            )
        return messages.ModelStatisticsResponse(model_stats=[_statistics(served) for served in models.values()])

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
        self, request: messages.SystemSharedMemoryStatusRequest
    ) -> messages.SystemSharedMemoryStatusResponse:
        answer = messages.SystemSharedMemoryStatusResponse()
        for region in self._service.regions.status(request.name):
            one = answer.regions[region.name]
            one.name, one.key, one.offset, one.byte_size = region.name, region.key, region.offset, region.nbytes
        return answer

    async def _system_shared_memory_register(
        self, request: messages.SystemSharedMemoryRegisterRequest
    ) -> messages.SystemSharedMemoryRegisterResponse:
        self._service.regions.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def _system_shared_memory_unregister(
        self, request: messages.SystemSharedMemoryUnregisterRequest
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        self._service.regions.unregister(request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def _cuda_shared_memory_status(self, _request: Any) -> messages.CudaSharedMemoryStatusResponse:
        return messages.CudaSharedMemoryStatusResponse()

    async def _cuda_shared_memory_register(self, _request: Any) -> Any:
        raise Refusal("unsupported", CUDA)

    _cuda_shared_memory_unregister = _cuda_shared_memory_register


def _refusing(answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    """A procedure whose Refusal is a status."""

    async def handler(request: Any, context: Context) -> Any:
        try:
            return await answer(request)
        except Refusal as refusal:
            await _abort(context, refusal)

    return handler


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
        ("compute_infer", counted.compute),
    ):  # fmt: skip
        _fill(getattr(answer.inference_stats, name), span)
    for size, span in sorted(counted.batches.items()):
        _fill(answer.batch_stats.add(batch_size=size).compute_infer, span)
    return answer


def _fill(message: Any, span: Span) -> None:
    message.count, message.ns = span.count, int(span.ms * 1e6)
