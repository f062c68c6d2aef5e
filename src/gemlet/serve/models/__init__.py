"""Models that need no download: well-known architectures built from code, with seeded random weights.

They take as long as the trained ones and answer nonsense, which is what profiling, load tests and examples need.

specification.py what a model is, of these and any other
built_in.py      their names, tensors and layers; needs no torch
construct.py     makes one, on a device and in a precision
images.py        what image networks share: the uint8 input, convolution with batch norm
classifiers.py   LeNet, VGG, ResNet, GoogLeNet, DenseNet
mobile.py        MobileNetV2, MNASNet, SSD on MobileNetV1
transformers.py  BERT's encoder; a decoder that makes one token from a cache of keys and values
recommender.py   DLRM: embedding bags and two MLPs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def build(name: str, device: str = "cpu") -> torch.nn.Module:
    """A built-in model, ready to run; half precision on a GPU. Raises ModelError if there is none of this name."""
    from gemlet.serve.models import construct  # noqa: PLC0415  imports torch

    return construct.build(name, device)
