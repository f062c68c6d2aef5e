"""Makes the models of built_in.py with torch."""

from __future__ import annotations

from importlib import import_module
from zlib import crc32

import torch
from torch import nn

from gemlet.serve.models.built_in import BUILT_IN
from gemlet.serve.models.specification import ModelError


def build(name: str, device: str = "cpu", precision: torch.dtype | None = None) -> nn.Module:
    """The model in evaluation mode, made on ``device`` from a seed that is its name.

    ``precision``: of the weights; default half on a GPU, single elsewhere. Raises ModelError.
    """
    if name not in BUILT_IN:
        raise ModelError(f"no built-in model is called {name!r}", hint=f"choose one of {', '.join(BUILT_IN)}")
    entry = BUILT_IN[name]
    make = getattr(import_module(f"gemlet.serve.models.{entry.module}"), entry.function)
    place = torch.device(device)
    on_gpu = place.type == "cuda"
    with torch.random.fork_rng(devices=[place] if on_gpu else []), place:
        torch.manual_seed(crc32(name.encode()))
        model = make()
    assert isinstance(model, nn.Module)
    wanted = precision or (torch.float16 if on_gpu else torch.float32)
    layout = torch.channels_last if entry.module in {"classifiers", "mobile"} else torch.preserve_format
    return model.eval().requires_grad_(False).to(place, wanted).to(memory_format=layout)
