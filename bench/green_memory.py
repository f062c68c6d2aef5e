"""What a driver says of memory and events that were made in a green context, once that is destroyed; a line a question.

The hook (native/hook/memory) supposes: memory outlives the green context that was current when it was made, and belongs
to the primary one; memory of cuMemAlloc has no handle; pools of the host's memory take none of the device's. It asks
about no event of a green context that is going, which an H200 would answer. Run it without gemlet:
``python -m bench.green_memory``. The last question may end the process.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

MIB = 1 << 20


def must(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]) != 0:
        raise SystemExit(f"the driver answers {answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


def say(question: str, answer: object) -> None:
    print(f"{question}: {answer}", flush=True)


def free() -> int:
    return int(must(cuda.cuMemGetInfo())[0]) // MIB


def main() -> None:
    must(cuda.cuInit(0))
    primary = must(cuda.cuDevicePrimaryCtxRetain(0))
    must(cuda.cuCtxSetCurrent(primary))

    props = cuda.CUmemPoolProps()
    props.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    result, pool = cuda.cuMemPoolCreate(props)
    say("a pool of the host's memory", repr(result))
    if int(result) == 0:
        before = free()
        must(cuda.cuMemAllocFromPoolAsync(256 * MIB, pool, 0))
        must(cuda.cuCtxSynchronize())
        say("MiB of the device that 256 MiB of it take", before - free())

    plain = must(cuda.cuMemAlloc(64 * MIB))
    say("the handle of memory of cuMemAlloc", repr(cuda.cuMemRetainAllocationHandle(int(plain))[0]))

    resource = must(cuda.cuDeviceGetDevResource(0, cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, _, _ = must(cuda.cuDevSmResourceSplitByCount(1, resource, 0, 8))
    description = must(cuda.cuDevResourceGenerateDesc(groups, 1))
    green = must(cuda.cuGreenCtxCreate(description, 0, cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
    context = must(cuda.cuCtxFromGreenCtx(green))
    say("a green context is the primary one", int(context) == int(primary))
    must(cuda.cuCtxSetCurrent(context))
    before = free()
    memory = must(cuda.cuMemAlloc(512 * MIB))
    say("MiB that 512 MiB take", before - free())
    owner = cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT, memory)[1]
    say("its context is the green one, the primary one", (int(owner) == int(context), int(owner) == int(primary)))
    event = must(cuda.cuEventCreate(0))
    stream = must(cuda.cuGreenCtxStreamCreate(green, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
    say("the context of its stream is the green one", int(must(cuda.cuStreamGetCtx(stream))) == int(context))
    must(cuda.cuEventRecord(event, stream))
    must(cuda.cuStreamSynchronize(stream))
    must(cuda.cuStreamDestroy(stream))
    must(cuda.cuCtxSetCurrent(primary))
    must(cuda.cuGreenCtxDestroy(green))
    say("MiB that are taken when it is destroyed", before - free())
    say("a copy to its memory", repr(cuda.cuMemsetD8(memory, 1, MIB)[0]))
    say("its free", repr(cuda.cuMemFree(memory)[0]))
    say("MiB that are taken then", before - free())
    other = must(cuda.cuEventCreate(0))
    say("another event has the handle of its event", int(other) == int(event))
    say("its event", repr(cuda.cuEventQuery(event)[0]))


if __name__ == "__main__":
    main()
