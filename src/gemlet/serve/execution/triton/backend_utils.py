"""What models of Triton's Python backend import as `triton_python_backend_utils`.

The names, arguments and results are those that NVIDIA documents for models on the host; what has no counterpart here
raises TritonModelException with the reason. A model runs in a thread of its executor; what it asks of its surroundings
(its folder, other models) is found through that thread's context.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gemlet.inference_protocol import tensors

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Iterable, Mapping, Sequence

_log = logging.getLogger("gemlet.serve.executor")

TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU = 0, 2
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 1, 2
TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 1, 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
# In the order of TRITONSERVER_DataType, whose first member is "invalid".
_NUMBERED = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING",
)  # fmt: skip


class TritonModelException(Exception):
    """What a call of this module raises."""


class TritonError:
    """Why a request failed."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)
    _NAMES = (
        "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED",
    )  # fmt: skip

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = str(message), code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def code_name(self) -> str:
        return self._NAMES[self._code] if self._code in range(len(self._NAMES)) else "UNKNOWN"


class Tensor:
    """A named array on the host. Objects are BYTES, whose elements are bytes or text."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor {name!r} is made of a {type(array).__name__}: expected a numpy array")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.type)

    def as_numpy(self) -> np.ndarray:
        """An array of the caller's own: it may be written, and kept after the request."""
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        return self._array

    @property
    def array(self) -> np.ndarray:
        """As it is; it may be that nobody may write it. Of gemlet's own."""
        return self._array

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self.as_numpy().__dlpack__()

    def __dlpack__(self, **how: Any) -> Any:
        return self.as_numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, given: Any) -> Tensor:
        """Of a tensor that is on the host or, where torch is there, on a device; it is copied to the host then."""
        if hasattr(given, "__dlpack_device__") and given.__dlpack_device__()[0] != 1:
            import torch  # noqa: PLC0415  a model with tensors on a device has it, or gets its error

            return Tensor(name, torch.from_dlpack(given).cpu().numpy())
        if not hasattr(given, "__dlpack__"):
            given = _Capsule(given)
        return Tensor(name, np.array(np.from_dlpack(given)))


class _Capsule:
    """A bare DLPack capsule of host memory, as numpy wants it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class PreferredMemory:
    """Where outputs should be; here they are on the host."""

    def __init__(self, memory_type: int, memory_type_id: int = 0) -> None:
        self.memory_type, self.memory_type_id = memory_type, memory_type_id


class InferenceResponse:
    """Outputs, or the error in their place."""

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None, **_parameters: Any
    ) -> None:
        self._tensors = list(output_tensors or ())
        self._error = TritonError(error) if isinstance(error, str) else error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class InferenceRequest:
    """One that came, or one to another model: `exec` and `async_exec` send it, and wait."""

    def __init__(  # noqa: PLR0917  the order that is documented
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: str | Mapping[str, Any] = "",
    ) -> None:
        self._id, self._correlation, self._flags, self._timeout = request_id, correlation_id, flags, timeout
        self._inputs, self._wanted = list(inputs), list(requested_output_names)
        self._model, self._version = model_name, model_version
        self._parameters = parameters

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        return self._timeout

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def parameters(self) -> Any:
        return self._parameters

    def preferred_memory(self) -> PreferredMemory:
        return PreferredMemory(TRITONSERVER_MEMORY_CPU)

    def trace(self) -> None:
        return None

    def is_cancelled(self) -> bool:
        """Requests whose client has gone are taken out before they get here."""
        return False

    def set_release_flags(self, flags: int) -> None:
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            raise TritonModelException("requests cannot be given back to be scheduled again")

    def get_response_sender(self) -> Any:
        raise TritonModelException("decoupled models are not served: a request has one response, which execute returns")

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """The answer of the other model, or its error."""
        try:
            return _response(self._sent(decoupled).result())
        except TritonModelException:
            raise
        except Exception as error:  # noqa: BLE001  it is the response
            return InferenceResponse(error=TritonError(str(error)))

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse:
        try:
            return _response(await asyncio.wrap_future(self._sent(decoupled)))
        except TritonModelException:
            raise
        except Exception as error:  # noqa: BLE001  it is the response
            return InferenceResponse(error=TritonError(str(error)))

    def _sent(self, decoupled: bool) -> concurrent.futures.Future[Mapping[str, np.ndarray]]:
        if decoupled:
            raise TritonModelException("decoupled models are not served: a request has one response")
        if not self._model:
            raise TritonModelException("a request to another model needs a model_name")
        version = str(self._version) if self._version > 0 else ""
        arrays = {tensor.name(): tensor._array for tensor in self._inputs}
        return surroundings().ask(self._model, version, arrays, self._wanted, self._timeout)


def _response(outputs: Mapping[str, np.ndarray]) -> InferenceResponse:
    return InferenceResponse([Tensor(name, array) for name, array in outputs.items()])


class Surroundings(Protocol):
    """What a model finds around it. ``folder``: of its version."""

    folder: str

    def ask(
        self, model: str, version: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], timeout_us: int
    ) -> concurrent.futures.Future[Mapping[str, np.ndarray]]:
        """Sends a request to another model. The future raises what went wrong."""
        ...

    def ready(self, model: str, version: str) -> bool: ...


current: ContextVar[Surroundings] = ContextVar("model")


def surroundings() -> Surroundings:
    """Of the model whose code calls. Raises TritonModelException."""
    try:
        return current.get()
    except LookupError:
        message = "this is known only in the thread that runs the model: call it in initialize or execute"
        raise TritonModelException(message) from None


def get_model_dir() -> str:
    """The folder of the model's version."""
    return surroundings().folder


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    return surroundings().ready(model_name, str(model_version))


def load_model(model_name: str, *_how: Any, **_more: Any) -> None:
    raise TritonModelException(f"a model cannot load others here: load {model_name} by the repository's API")


def unload_model(model_name: str, *_how: Any, **_more: Any) -> None:
    raise TritonModelException(f"a model cannot unload others here: unload {model_name} by the repository's API")


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return _named(inference_response.output_tensors(), name)


def _named(given: Iterable[Tensor], name: str) -> Tensor | None:
    for tensor in given:
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((each for each in model_config.get("input", ()) if each["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((each for each in model_config.get("output", ()) if each["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return TRITON_STRING_TO_NUMPY.get(triton_type_string)


def numpy_to_triton_type(data_type: Any) -> int:
    """Raises KeyError."""
    if data_type in {np.bytes_, np.str_}:
        data_type = np.object_
    known = {np.dtype(kind).type: name for name, kind in TRITON_STRING_TO_NUMPY.items()}
    return 1 + _NUMBERED.index(known[np.dtype(data_type).type].removeprefix("TYPE_"))


def triton_to_numpy_type(data_type: int) -> Any:
    return TRITON_STRING_TO_NUMPY[f"TYPE_{_NUMBERED[data_type - 1]}"]


def serialize_byte_tensor(input_tensor: np.ndarray) -> np.ndarray | None:
    """BYTES as on the wire, in an array of one object."""
    if input_tensor.size == 0:
        return None
    packed = np.empty(1, dtype=object)
    packed[0] = bytes(tensors.to_buffer(input_tensor, "BYTES"))
    return packed


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """The elements of BYTES as they are on the wire."""
    view, at, elements = memoryview(encoded_tensor), 0, []
    while at < len(view):
        start = at + tensors.LENGTH_BYTES
        at = start + int.from_bytes(view[at:start], "little")
        elements.append(bytes(view[start:at]))
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


class ModelConfig:
    """A configuration that `auto_complete_config` completes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """What the file says stays, if it says less."""
        said = self._config.get("max_batch_size", 0)
        if said > max_batch_size or not said:
            self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        self._config["model_transaction_policy"] = dict(transaction_policy_dict)

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002  its documented name
        self._add("input", input, {"name", "data_type", "dims", "optional"})

    def add_output(self, output: dict[str, Any]) -> None:
        self._add("output", output, {"name", "data_type", "dims"})

    def _add(self, where: str, tensor: dict[str, Any], known: set[str]) -> None:
        unknown = tensor.keys() - known
        if unknown or "name" not in tensor:
            wrong = f"the property {min(unknown)!r}" if unknown else "no name"
            raise ValueError(f"an {where} has {wrong}: expected {', '.join(sorted(known))}")
        listed = self._config.setdefault(where, [])
        there = next((each for each in listed if each["name"] == tensor["name"]), None)
        if there is None:
            listed.append(dict(tensor))
            return
        for key, value in tensor.items():
            if there.get(key) not in (None, [], "TYPE_INVALID", value) and key != "optional":
                message = (
                    f"{where} {tensor['name']!r} has {key} {there[key]!r} in the configuration, {value!r} in the model"
                )
                raise ValueError(message)
            there[key] = value


class Logger:
    """The server's log."""

    class LogLevel(enum.IntEnum):
        INFO, WARNING, ERROR, VERBOSE = range(4)

    INFO, WARNING, ERROR, VERBOSE = LogLevel
    _LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

    @classmethod
    def log(cls, message: str, level: int = LogLevel.INFO) -> None:
        _log.log(cls._LEVELS[level], "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        cls.log(message, cls.VERBOSE)


class Metric:
    """A number of the model's own. It counts, and is not shown by /metrics."""

    def __init__(self, kind: int) -> None:
        self._kind, self._value, self._lock = kind, 0.0, threading.Lock()

    def increment(self, value: float) -> None:
        if self._kind == MetricFamily.HISTOGRAM or (self._kind == MetricFamily.COUNTER and value < 0):
            raise TritonModelException("this metric cannot be incremented by that")
        with self._lock:
            self._value += value

    def set(self, value: float) -> None:
        if self._kind != MetricFamily.GAUGE:
            raise TritonModelException("only a gauge can be set")
        with self._lock:
            self._value = value

    def observe(self, value: float) -> None:
        if self._kind != MetricFamily.HISTOGRAM:
            raise TritonModelException("only a histogram observes")
        with self._lock:
            self._value += value

    def value(self) -> float:
        return self._value


class MetricFamily:
    """Metrics of one name."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name: str, description: str, kind: int) -> None:
        self._kind = kind
        _log.warning("the model's metric %s counts, but /metrics does not show it: %s", name, description)

    def Metric(self, labels: Mapping[str, str] | None = None, **_more: Any) -> Metric:  # noqa: N802  its documented name
        return Metric(self._kind)
