"""MobileNetV2 (2018), MNASNet-B1 1.0 (2018), and SSD (2016) at 300 x 300 on MobileNetV1 (2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gemlet.serve.models.images import Add, Scaled, conv, head

if TYPE_CHECKING:
    from torch import Tensor


def _separable(wide: int, out: int, stride: int, activation: type[nn.Module] = nn.ReLU6) -> nn.Sequential:
    return nn.Sequential(
        conv(wide, wide, 3, stride, groups=wide, activation=activation), conv(wide, out, activation=activation)
    )


def _inverted(
    wide: int, out: int, size: int, stride: int, *, expand: int, activation: type[nn.Module] = nn.ReLU6
) -> nn.Module:
    inner = wide * expand
    layers = [conv(wide, inner, activation=activation)] if expand > 1 else []
    layers += [conv(inner, inner, size, stride, groups=inner, activation=activation), conv(inner, out, activation=None)]
    path = nn.Sequential(*layers)
    return Add(path) if stride == 1 and wide == out else path


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2, activation=nn.ReLU6)]
    wide = 32
    for expand, out, times, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(times):
            layers.append(_inverted(wide, out, 3, 1 if number else first, expand=expand))
            wide = out
    return Scaled(nn.Sequential(*layers, conv(wide, 1280, activation=nn.ReLU6), head(1280)))


def mnasnet() -> nn.Module:
    layers: list[nn.Module] = [
        conv(3, 32, 3, 2), conv(32, 32, 3, groups=32), conv(32, 16, activation=None),
    ]  # fmt: skip
    wide = 16
    for expand, size, out, times, first in (
        (3, 3, 24, 3, 2), (3, 5, 40, 3, 2), (6, 5, 80, 3, 2), (6, 3, 96, 2, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1),
    ):  # fmt: skip
        for number in range(times):
            layers.append(_inverted(wide, out, size, 1 if number else first, expand=expand, activation=nn.ReLU))
            wide = out
    return Scaled(nn.Sequential(*layers, conv(wide, 1280), head(1280)))


class _Ssd(nn.Module):
    """Six feature maps, each with a convolution for boxes and one for scores: 1917 boxes, 91 classes."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [conv(3, 32, 3, 2, activation=nn.ReLU6)]
        wide = 32
        for out, stride in (
            (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1),
        ):  # fmt: skip
            blocks.append(_separable(wide, out, stride))
            wide = out
        extras = [
            nn.Sequential(conv(wide, middle, activation=nn.ReLU6), conv(middle, out, 3, 2, activation=nn.ReLU6))
            for wide, middle, out in ((1024, 256, 512), (512, 128, 256), (256, 128, 256), (256, 64, 128))
        ]
        self.stages = nn.ModuleList([nn.Sequential(*blocks[:12]), nn.Sequential(*blocks[12:]), *extras])
        wides, self.anchors = (512, 1024, 512, 256, 256, 128), (3, 6, 6, 6, 6, 6)
        self.boxes = nn.ModuleList(nn.Conv2d(w, 4 * a, 1) for w, a in zip(wides, self.anchors, strict=True))
        self.scores = nn.ModuleList(nn.Conv2d(w, 91 * a, 1) for w, a in zip(wides, self.anchors, strict=True))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = [], []
        for stage, box, score in zip(self.stages, self.boxes, self.scores, strict=True):
            x = stage(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 91))
        return torch.cat(boxes, 1), torch.cat(scores, 1).sigmoid()


def ssd() -> nn.Module:
    return Scaled(_Ssd())
