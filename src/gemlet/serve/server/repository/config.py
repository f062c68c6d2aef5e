"""What a model's files may say, whatever their format, and the ModelSpec that comes of it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

import msgspec

from gemlet.config import suggest
from gemlet.config.quantities import check_fraction, parse_seconds, parse_share
from gemlet.errors import ConfigError, InvalidValue
from gemlet.inference_protocol.tensors import ELEMENTS
from gemlet.serve.models.built_in import BUILT_IN
from gemlet.serve.models.specification import ModelSpec, Platform, TensorSpec, WarmUp

if TYPE_CHECKING:
    from pathlib import Path

PLATFORMS: tuple[Platform, ...] = (
    "torch_export", "torchscript", "onnx", "tensorrt", "python", "triton_python", "builtin", "noop", "modelled",
)  # fmt: skip
# The file of a version, by platform; the others need none.
MODEL_FILES: dict[Platform, str] = {
    "torch_export": "model.pt2",
    "torchscript": "model.pt",
    "onnx": "model.onnx",
    "tensorrt": "model.plan",
    "python": "model.py",
}
BY_CODE = frozenset({"python", "triton_python"})  # both are a model.py, which tells which it is
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
)  # fmt: skip
MAX_BATCH = 65_536
MAX_SIZE = 1 << 48  # of a dimension
DEFAULT_SLO_MS = 1000.0
DEFAULT_PRIORITY = 2
MAX_PRIORITY = 1000
MAX_VERSIONS = 1_000_000
# Of the batches before the first request, for which other models of the executor wait.
MAX_WARM_UPS = 100
MAX_WARM_UP_RUNS = 1000  # of all samples
MAX_WARM_UP_BYTES = 1024**3  # of the inputs of one
OBJECT = (8, "O")  # of numpy, for an element of BYTES


class TensorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    datatype: str
    shape: list[int]
    optional: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"service_class": "class"}):
    """All that can be said about a model; None = not said. ``slo_ms`` in milliseconds, ``slo`` such as "25ms"."""

    name: str | None = None
    platform: str | None = None
    max_batch: int | None = None
    inputs: list[TensorConfig] | None = None
    outputs: list[TensorConfig] | None = None
    slo_ms: float | None = None
    slo: str | None = None
    sm: str | float | None = None
    service_class: Literal["latency", "throughput"] | None = None
    priority: int | None = None
    version: int | None = None
    versions: str | list[int] | None = None
    parameters: dict[str, str | int | float | bool] | None = None
    file: str | None = None
    warm_up: tuple[WarmUp, ...] | None = None


class FieldError(Exception):
    """A field has a value that cannot be. ``field`` as in Config, such as ("inputs", 0, "datatype")."""

    def __init__(self, field: tuple[str | int, ...], message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.hint = hint

    def name(self) -> str:
        """The field for people: ``inputs 1 datatype``."""
        return " ".join(str(part + 1) if isinstance(part, int) else part for part in self.field)


def merged(first: Config, second: Config) -> Config:
    """What ``second`` says goes before what ``first`` says."""
    said = {name: value for name in Config.__struct_fields__ if (value := getattr(second, name)) is not None}
    if "slo" in said or "slo_ms" in said:
        said = {"slo": None, "slo_ms": None} | said
    return msgspec.structs.replace(first, **said)


def served_versions(config: Config, there: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the versions that are ``there``, ascending, which ``config`` asks for. Raises FieldError."""
    if config.version is not None and config.versions is not None:
        raise FieldError(("version",), "version and versions are both given", "keep one")
    wanted = [config.version] if config.version is not None else config.versions
    if wanted is None:
        return there[-1:]
    if isinstance(wanted, str):
        if wanted == "all":
            return there
        word, _, count = wanted.partition(" ")
        if word != "latest" or not (count.isdecimal() and count.isascii() and 0 < int(count) <= MAX_VERSIONS):
            hint = "write all, latest 2, or a list such as [3, 7]"
            raise FieldError(("versions",), f"{wanted!r} says not which", hint)
        return there[-int(count) :]
    field = ("version",) if config.version is not None else ("versions",)
    for version in wanted:
        if version not in there:
            listed = ", ".join(map(str, there))
            raise FieldError(field, f"there is no version {version}", f"there: {listed}")
    if not wanted:
        raise FieldError(field, "the list is empty", "leave it out for the highest version")
    return tuple(sorted(set(wanted)))


def for_triton(spec: ModelSpec, configuration: str) -> ModelSpec:
    """The same as a model written for Triton's Python backend; ``configuration``: JSON that it gets."""
    return msgspec.structs.replace(spec, platform="triton_python", configuration=configuration)


def check_optional(spec: ModelSpec) -> ModelSpec:
    """Raises FieldError for inputs that may be left out of a request to what cannot tell."""
    for number, tensor in enumerate(spec.inputs):
        if tensor.optional and not spec.by_request:
            message = f"{tensor.name!r} may be left out: of a {spec.platform} model every request has all inputs"
            raise FieldError(("inputs", number, "optional"), message, "leave it out")
    return spec


def specification(config: Config, directory: Path, version: int) -> ModelSpec:
    """That version of the model that ``config`` describes. Raises FieldError."""
    if config.name is not None and config.name != directory.name:
        raise FieldError(("name",), f"{config.name!r} is not the name of its directory", "leave it out")
    platform = _platform(config, directory / str(version))
    max_batch = _max_batch(config, platform, directory.name)
    if not 0 <= max_batch <= MAX_BATCH:
        raise FieldError(
            ("max_batch",),
            f"{max_batch} is not valid: expected 0 to {MAX_BATCH}",
            "write 0 for shapes without a batch dimension",
        )
    inputs, outputs = _tensors("inputs", config.inputs), _tensors("outputs", config.outputs)
    if platform != "builtin":
        for what, tensors in (("inputs", inputs), ("outputs", outputs)):
            if not tensors:
                hint = f"write them, such as {what}: [{{name: X, datatype: FP32, shape: [4]}}]"
                raise FieldError((what,), "there is none", hint)
    return ModelSpec(
        name=directory.name,
        directory=str(directory),
        platform=platform,
        inputs=inputs,
        outputs=outputs,
        max_batch=max_batch,
        slo_ms=_slo(config),
        sm=_sm(config),
        service_class=config.service_class or "latency",
        priority=_priority(config),
        parameters={key: _text(value) for key, value in (config.parameters or {}).items()},
        version=version,
        file=config.file or "",
        warm_up=_warm_up(config.warm_up or ()),
    )


def field_of(error: msgspec.ValidationError) -> FieldError:
    """msgspec says ``Expected `int` - at `$.inputs[0].shape``; this says which field that is."""
    message, _, where = str(error).partition(" - at ")
    path: list[str | int] = []
    for part in where.strip("`").removeprefix("$").replace("[...]", "").split("."):
        name, _, index = part.partition("[")
        path += [name] if name else []
        path += [int(digits) for digits in index.replace("]", "").split("[") if digits.isdigit()]
    if message.startswith("Object contains unknown field"):
        unknown = message.split("`")[1]
        known = (
            TensorConfig.__struct_fields__ if path[:1] in (["inputs"], ["outputs"]) else Config.__struct_encode_fields__
        )
        return FieldError((*path, unknown), "there is no such field", suggest.hint(unknown, known))
    return FieldError(tuple(path), message[:1].lower() + message[1:], "docs/serving/models.md describes config.yaml")


def problem(error: FieldError, path: Path, line: int | None = None) -> ConfigError:
    name = error.name()
    return ConfigError(f"{name}: {error}" if name else str(error), path=str(path), line=line, hint=error.hint)


def _max_batch(config: Config, platform: Platform, name: str) -> int:
    if config.max_batch is not None:
        return config.max_batch
    known = BUILT_IN.get(str((config.parameters or {}).get("model", name))) if platform == "builtin" else None
    return known.max_batch if known is not None else 1


def _platform(config: Config, folder: Path) -> Platform:
    if config.platform is None:
        found = [platform for platform, file in MODEL_FILES.items() if (folder / (config.file or file)).is_file()]
        if len(found) == 1:
            return found[0]
        hint = f"write platform: and one of {', '.join(PLATFORMS)}"
        raise FieldError(("platform",), f"it does not say, and {folder.name}/ has {len(found)} model files", hint)
    for platform in PLATFORMS:
        if platform == config.platform:
            file = MODEL_FILES.get(platform) and (config.file or MODEL_FILES[platform])
            if file and not (folder / file).is_file():
                raise FieldError(("platform",), f"{platform} needs {folder.name}/{file}, which is not there")
            return platform
    raise FieldError(("platform",), f"{config.platform!r} is none", suggest.hint(config.platform, PLATFORMS))


def _tensors(what: str, tensors: list[TensorConfig] | None) -> tuple[TensorSpec, ...]:
    seen: set[str] = set()
    for number, tensor in enumerate(tensors or []):
        if not tensor.name or tensor.name in seen:
            raise FieldError((what, number, "name"), f"{tensor.name!r} is empty or appears twice")
        seen.add(tensor.name)
        if tensor.datatype not in DATATYPES:
            hint = suggest.hint(tensor.datatype, DATATYPES)
            raise FieldError((what, number, "datatype"), f"{tensor.datatype!r} is none", hint)
        if any(size < -1 for size in tensor.shape):
            raise FieldError((what, number, "shape"), f"{tensor.shape} has a negative size", "-1 stands for any size")
        if any(size > MAX_SIZE for size in tensor.shape):
            message = f"a size is above {MAX_SIZE}, which no request may have"
            raise FieldError((what, number, "shape"), message, "-1 stands for any size")
    return tuple(TensorSpec(each.name, each.datatype, tuple(each.shape), each.optional) for each in tensors or [])


def _slo(config: Config) -> float:
    if config.slo is not None and config.slo_ms is not None:
        raise FieldError(("slo",), "slo and slo_ms are both given", "keep one")
    try:
        slo_ms = 1000 * parse_seconds(config.slo) if config.slo is not None else config.slo_ms
    except InvalidValue as error:
        raise FieldError(("slo",), str(error), 'write slo: "25ms", or slo_ms: 25') from None
    if slo_ms is None:
        return DEFAULT_SLO_MS
    if not 0 < slo_ms < float("inf"):
        raise FieldError(("slo_ms",), f"{slo_ms:g} ms cannot be met", "milliseconds from arrival to reply")
    return slo_ms


def _sm(config: Config) -> float | None:
    if config.sm is None:
        return None
    try:
        return check_fraction(parse_share(str(config.sm)))
    except InvalidValue as error:
        raise FieldError(("sm",), error.message, error.hint) from None


def _priority(config: Config) -> int:
    if config.priority is None:
        return DEFAULT_PRIORITY
    if not 1 <= config.priority <= MAX_PRIORITY:
        hint = f"write 1 for what is served first; the default is {DEFAULT_PRIORITY}"
        raise FieldError(("priority",), f"{config.priority} is not valid: expected 1 to {MAX_PRIORITY}", hint)
    return config.priority


def _warm_up(samples: tuple[WarmUp, ...]) -> tuple[WarmUp, ...]:
    """The same, by the names that they have in config.pbtxt. Raises FieldError."""
    if len(samples) > MAX_WARM_UPS:
        message = f"{len(samples)} samples are too many: expected at most {MAX_WARM_UPS}"
        raise FieldError(("model_warmup",), message, "one of each shape that matters will do")
    runs = 0
    for number, sample in enumerate(samples):
        runs += max(1, sample.count)
        if runs > MAX_WARM_UP_RUNS:
            message = f"{sample.count} makes {runs} runs of all samples: expected at most {MAX_WARM_UP_RUNS}"
            raise FieldError(("model_warmup", number, "count"), message, "a few are enough for a model to be warm")
        if sample.rows > MAX_BATCH:
            message = f"{sample.rows} is not valid: expected at most {MAX_BATCH}"
            raise FieldError(("model_warmup", number, "batch_size"), message)
        nbytes = 0
        for tensor, _ in sample.inputs:
            field = ("model_warmup", number, "inputs", tensor.name, "dims")
            if any(size < 0 for size in tensor.shape):
                raise FieldError(field, f"{list(tensor.shape)} has a negative size", "a sample has a shape of its own")
            nbytes += max(1, sample.rows) * prod(tensor.shape) * ELEMENTS.get(tensor.datatype, OBJECT)[0]
            if nbytes > MAX_WARM_UP_BYTES:
                message = (
                    f"the sample has more than {MAX_WARM_UP_BYTES} bytes with {sample.rows} x {list(tensor.shape)}"
                )
                raise FieldError(field, message, "write smaller dims, or a smaller batch_size")
    return samples


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
