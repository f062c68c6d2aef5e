"""The models that construct.py can make: names, tensors, largest batch. Imports no torch.

Images come as uint8, channels first, and are scaled on the device: a quarter of the bytes of floats on the way there.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gemlet.serve.models.specification import ModelError, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """module, function: in this package, a function () -> torch.nn.Module. below: inputs are integers under this."""

    about: str
    module: str
    function: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 32
    below: int = 256
    argument: int | None = None  # of the function


def _image(side: int, channels: int = 3) -> tuple[TensorSpec, ...]:
    return (TensorSpec("input", "UINT8", (channels, side, side)),)


def _scores(count: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec("output", "FP32", (count,)),)


_LENET = BuiltIn("LeNet-5 on 28 x 28 images", "classifiers", "lenet", _image(28, 1), _scores(10))
VOCABULARY = 30522  # BERT's
DECODER_VOCABULARY = 50257  # GPT-2's
DECODER_PAST = 511  # tokens in the cache before the computed one
TABLES = 26  # sparse features of Criteo's data
TABLE_ROWS = 200_000
BAG = 20  # rows read of each table for one request

BUILT_IN: dict[str, BuiltIn] = {
    **{f"lenet{n}": _LENET for n in range(1, 7)},  # glet's six LeNets differ in nothing but their weights
    "lenet": _LENET,
    "googlenet": BuiltIn("GoogLeNet (Inception v1)", "classifiers", "googlenet", _image(224), _scores(1000)),
    "resnet50": BuiltIn("ResNet-50", "classifiers", "resnet50", _image(224), _scores(1000)),
    "ssd-mobilenetv1": BuiltIn(
        "SSD 300 on MobileNetV1, without non-maximum suppression",
        "mobile", "ssd",
        _image(300),
        (TensorSpec("boxes", "FP32", (1917, 4)), TensorSpec("scores", "FP32", (1917, 91))),
    ),
    "vgg16": BuiltIn("VGG-16", "classifiers", "vgg16", _image(224), _scores(1000)),
    "mnasnet1_0": BuiltIn("MNASNet 1.0", "mobile", "mnasnet", _image(224), _scores(1000)),
    "mobilenet_v2": BuiltIn("MobileNetV2", "mobile", "mobilenet_v2", _image(224), _scores(1000)),
    "densenet161": BuiltIn("DenseNet-161", "classifiers", "densenet161", _image(224), _scores(1000)),
    "bert": BuiltIn(
        "BERT base, 128 tokens",
        "transformers", "bert",
        (TensorSpec("input_ids", "INT64", (128,)),),
        (TensorSpec("pooled", "FP32", (768,)),),
        below=VOCABULARY,
    ),
    "decoder": BuiltIn(
        f"GPT-2 small, one token after {DECODER_PAST} in its cache",
        "transformers", "decoder",
        (TensorSpec("input_ids", "INT64", (1,)),),
        (TensorSpec("next_id", "INT64", (1,)),),
        below=DECODER_VOCABULARY,
    ),
    "dlrm": BuiltIn(
        f"DLRM: {TABLES} tables of {TABLE_ROWS:,} rows, bags of {BAG}",
        "recommender", "dlrm",
        (TensorSpec("dense", "FP32", (13,)), TensorSpec("sparse", "INT64", (TABLES, BAG))),
        (TensorSpec("click", "FP32", (1,)),),
        below=TABLE_ROWS,
    ),
}  # fmt: skip

DEFAULT = (  # what `gemlet profile` measures unless told: every architecture once
    "lenet1", "googlenet", "resnet50", "ssd-mobilenetv1", "vgg16", "mobilenet_v2", "mnasnet1_0", "densenet161", "bert",
    "decoder", "dlrm",
)  # fmt: skip
SAME = {f"lenet{n}": "lenet1" for n in range(2, 7)}  # a profile of the one is a profile of the other


def spec(name: str) -> ModelSpec:
    """The model as a repository would describe it. Raises KeyError if there is none of this name."""
    entry = BUILT_IN[name]
    return ModelSpec(
        name=name,
        directory="",
        platform="builtin",
        inputs=entry.inputs,
        outputs=entry.outputs,
        max_batch=entry.max_batch,
        parameters={"model": name},
    )


def completed(model: ModelSpec) -> ModelSpec:
    """A built-in model of a repository need not describe its tensors: they are these. Raises ModelError."""
    if model.platform != "builtin" or model.inputs:
        return model
    name = model.parameters.get("model", model.name)
    if name not in BUILT_IN:
        raise ModelError(f"no built-in model is called {name!r}", hint=f"choose one of {', '.join(BUILT_IN)}")
    return replace(model, inputs=BUILT_IN[name].inputs, outputs=BUILT_IN[name].outputs)
