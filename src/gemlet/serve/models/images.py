"""What image networks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class Scaled(nn.Module):
    """A network of floats in [-1, 1] around one that takes bytes. Channels come last, as tensor cores need them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.anchor = nn.Parameter(torch.zeros(1), requires_grad=False)  # knows the precision

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        pixels = image.to(self.anchor.dtype, memory_format=torch.channels_last) * (2 / 255) - 1
        result: Tensor | tuple[Tensor, ...] = self.network(pixels)
        return result.float() if isinstance(result, torch.Tensor) else tuple(each.float() for each in result)


class Cat(nn.Module):
    """Branches of the same input, their channels side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Add(nn.Module):
    """inner(x) + shortcut(x), then relu if asked for."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None, *, relu: bool = False) -> None:
        super().__init__()
        self.inner, self.shortcut, self.relu = inner, shortcut or nn.Identity(), relu

    def forward(self, x: Tensor) -> Tensor:
        total = self.inner(x) + self.shortcut(x)
        return total.relu_() if self.relu else total


def conv(
    wide: int,
    out: int,
    size: int = 1,
    stride: int = 1,
    *,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation; padded so that stride 1 keeps the size."""
    layers: list[nn.Module] = [
        nn.Conv2d(wide, out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def head(wide: int, classes: int = 1000) -> nn.Sequential:
    """Mean over the image, then a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))
