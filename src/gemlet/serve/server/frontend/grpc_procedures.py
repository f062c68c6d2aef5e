"""Procedures of inference.GRPCInferenceService that are not for inference: one method each, by its messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

import gemlet
from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import documents, intake
from gemlet.serve.server.frontend.regions import DeviceRegion, SystemRegion
from gemlet.serve.server.frontend.service import NO_OVERRIDE
from gemlet.serve.server.repository import triton_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.dispatch.statistics import Span
    from gemlet.serve.server.frontend.grpc_call import GrpcCall
    from gemlet.serve.server.frontend.regions import UserRegions
    from gemlet.serve.server.frontend.service import IndexEntry, Service

NAMES = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
)  # fmt: skip


class Procedures:
    """What they answer. A Refusal is a status."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, name: str, call: GrpcCall, data: bytes) -> None:
        """Answers a call of the procedure of that name. Never raises, but for a cancellation."""
        kind = getattr(messages, f"{name}Request")
        try:
            act = getattr(self, re.sub("([A-Z])", r"_\1", name).lower())
            request = kind.FromString(data)
            del data  # it may be long until the request is answered
            client = call.connection
            if "SharedMemory" in name:
                answer = await act(request, client.regions)
            elif "RepositoryModel" in name:
                answer = await act(request, client.peer)
            else:
                answer = await act(request)
            call.respond([answer if isinstance(answer, bytes) else answer.SerializeToString()])
        except DecodeError as error:
            call.refuse(Refusal("invalid", f"not a {kind.__name__}: {error}"))
        except Exception as error:  # noqa: BLE001  it is the answer
            call.refuse(intake.refusal_of(error))

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
        return messages.ServerMetadataResponse(
            name=documents.SERVER, version=gemlet.__version__, extensions=documents.EXTENSIONS
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

    async def _model_statistics(
        self, request: messages.ModelStatisticsRequest
    ) -> messages.ModelStatisticsResponse | bytes:
        if not request.name:
            return await self._service.texts.of(_all_statistics)
        models, spec = self._service.engine.models, self._service.model(request.name, request.version)
        found = [models[spec.label]] if request.version else models.versions(spec.name)
        return messages.ModelStatisticsResponse(model_stats=[_statistics(served) for served in found])

    # Repository

    async def _repository_index(self, request: messages.RepositoryIndexRequest) -> bytes:
        return await self._service.texts.of(_index_of_ready if request.ready else _index)

    async def _repository_model_load(
        self, request: messages.RepositoryModelLoadRequest, peer: str
    ) -> messages.RepositoryModelLoadResponse:
        if request.parameters:
            raise Refusal("unsupported", NO_OVERRIDE)
        await self._service.load(request.model_name, peer)
        return messages.RepositoryModelLoadResponse()

    async def _repository_model_unload(
        self, request: messages.RepositoryModelUnloadRequest, peer: str
    ) -> messages.RepositoryModelUnloadResponse:
        await self._service.unload(request.model_name, peer)
        return messages.RepositoryModelUnloadResponse()

    # Shared memory

    async def _system_shared_memory_status(
        self, request: messages.SystemSharedMemoryStatusRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryStatusResponse:
        answer = messages.SystemSharedMemoryStatusResponse()
        for region in regions.status(SystemRegion, request.name):
            one = answer.regions[region.name]
            one.name, one.key, one.offset, one.byte_size = region.name, region.key, region.offset, region.nbytes
        return answer

    async def _system_shared_memory_register(
        self, request: messages.SystemSharedMemoryRegisterRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryRegisterResponse:
        await regions.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def _system_shared_memory_unregister(
        self, request: messages.SystemSharedMemoryUnregisterRequest, regions: UserRegions
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        await regions.unregister(SystemRegion, request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def _cuda_shared_memory_status(
        self, request: messages.CudaSharedMemoryStatusRequest, regions: UserRegions
    ) -> messages.CudaSharedMemoryStatusResponse:
        answer = messages.CudaSharedMemoryStatusResponse()
        for region in regions.status(DeviceRegion, request.name):
            one = answer.regions[region.name]
            one.name, one.device_id, one.byte_size = region.name, region.device, region.nbytes
        return answer

    async def _cuda_shared_memory_register(
        self, request: messages.CudaSharedMemoryRegisterRequest, regions: UserRegions
    ) -> messages.CudaSharedMemoryRegisterResponse:
        await regions.register_device(request.name, request.raw_handle, request.device_id, request.byte_size)
        return messages.CudaSharedMemoryRegisterResponse()

    async def _cuda_shared_memory_unregister(
        self, request: messages.CudaSharedMemoryUnregisterRequest, regions: UserRegions
    ) -> messages.CudaSharedMemoryUnregisterResponse:
        await regions.unregister(DeviceRegion, request.name)
        return messages.CudaSharedMemoryUnregisterResponse()


def _index(service: Service) -> bytes:
    return _index_of(service.index())


def _index_of_ready(service: Service) -> bytes:
    return _index_of(entry for entry in service.index() if entry.state == "READY")


def _index_of(entries: Iterable[IndexEntry]) -> bytes:
    answer = messages.RepositoryIndexResponse()
    for entry in entries:
        answer.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return answer.SerializeToString()


def _all_statistics(service: Service) -> bytes:
    found = [_statistics(served) for served in service.engine.models.values()]
    return messages.ModelStatisticsResponse(model_stats=found).SerializeToString()


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
