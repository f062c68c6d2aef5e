"""Triton's own client, unmodified, against a live server: whether it gets the same answers by every way."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gemlet.serve.models.built_in import BuiltIn

ROWS = 2
TRIES = 5
KINDS = {"UINT8": np.uint8, "INT64": np.int64, "FP32": np.float32}


def check(kind: str, address: str, model: str, entry: BuiltIn) -> dict[str, Any]:
    """``kind``: http or grpc. What held: binary tensors, shared memory, the same answers twice, an unknown model.

    With ``missing`` where the client is not installed, or cannot be imported here.
    """
    try:
        kit: Any = importlib.import_module(f"tritonclient.{kind}")
        shared: Any = importlib.import_module("tritonclient.utils.shared_memory")
        errors: Any = importlib.import_module("tritonclient.utils")
    except Exception as error:  # noqa: BLE001  a protobuf of another version raises what it likes
        return {"missing": f"tritonclient.{kind}: {type(error).__name__}: {error}"}
    chance = np.random.default_rng(1)
    arrays = {t.name: chance.integers(0, entry.below, (ROWS, *t.shape)).astype(KINDS[t.datatype]) for t in entry.inputs}
    with kit.InferenceServerClient(address) as client:
        given = []
        for tensor in entry.inputs:
            each = kit.InferInput(tensor.name, [ROWS, *tensor.shape], tensor.datatype)
            each.set_data_from_numpy(arrays[tensor.name])
            given.append(each)
        wanted = [kit.InferRequestedOutput(t.name) for t in entry.outputs]
        first, second = (_answers(_infer(client, model, given, wanted), entry) for _ in range(2))
        through = _by_shared_memory(kit, shared, client, model, entry, arrays)
        return {
            "shapes": {name: list(array.shape) for name, array in first.items()},
            "twice_the_same": _same(first, second),
            "shared_memory_the_same": _same(first, through),
            "largest_difference": max(_apart(first, second), _apart(first, through)),
            "unknown_model_refused": _refused(client, errors.InferenceServerException, given),
        }


def _infer(client: Any, model: str, given: list[Any], wanted: list[Any]) -> Any:
    """Again if it would have been late: a pause of the machine is not what is looked for here."""
    for _ in range(TRIES - 1):
        try:
            return client.infer(model, given, outputs=wanted)
        except Exception as refusal:  # the client's own, whose module is not known here
            if "deadline" not in str(refusal):
                raise
    return client.infer(model, given, outputs=wanted)


def _answers(result: Any, entry: BuiltIn) -> dict[str, np.ndarray]:
    return {t.name: result.as_numpy(t.name) for t in entry.outputs}


def _by_shared_memory(
    kit: Any, shared: Any, client: Any, model: str, entry: BuiltIn, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """All tensors in one region, the inputs first."""
    sizes = {t.name: ROWS * int(np.prod(t.shape)) * np.dtype(KINDS[t.datatype]).itemsize for t in entry.outputs}
    total = sum(array.nbytes for array in arrays.values()) + sum(sizes.values())
    key = f"/gemlet-bench-{os.getpid()}"
    handle = shared.create_shared_memory_region("bench", key, total)
    try:
        client.register_system_shared_memory("bench", key, total)
        try:
            at, given, wanted, places = 0, [], [], {}
            for tensor in entry.inputs:
                array = arrays[tensor.name]
                shared.set_shared_memory_region(handle, [array], offset=at)
                each = kit.InferInput(tensor.name, list(array.shape), tensor.datatype)
                each.set_shared_memory("bench", array.nbytes, offset=at)
                given.append(each)
                at += array.nbytes
            for tensor in entry.outputs:
                each = kit.InferRequestedOutput(tensor.name)
                each.set_shared_memory("bench", sizes[tensor.name], offset=at)
                wanted.append(each)
                places[tensor.name] = at
                at += sizes[tensor.name]
            _infer(client, model, given, wanted)
            return {
                t.name: shared.get_contents_as_numpy(
                    handle, KINDS[t.datatype], [ROWS, *t.shape], places[t.name]
                ).copy()
                for t in entry.outputs
            }  # fmt: skip
        finally:
            client.unregister_system_shared_memory("bench")
    finally:
        shared.destroy_shared_memory_region(handle)


def _refused(client: Any, error: type[Exception], given: list[Any]) -> bool:
    try:
        client.infer("nobody-knows-it", given)
    except error as refusal:
        return "nobody-knows-it" in str(refusal)
    return False


def _same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return max(float(np.max(np.abs(one[name].astype(float) - other[name].astype(float)))) for name in one)
