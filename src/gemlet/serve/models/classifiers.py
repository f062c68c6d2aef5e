"""LeNet-5 (1998), VGG-16 (2014), GoogLeNet (2014), ResNet-50 (2015, stride in the 3 x 3), DenseNet-161 (2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gemlet.serve.models.images import Add, Cat, Scaled, conv, head

if TYPE_CHECKING:
    from torch import Tensor


def lenet() -> nn.Module:
    return Scaled(
        nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )
    )  # fmt: skip


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    wide = 3
    for out, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(wide, out, 3, padding=1), nn.ReLU(inplace=True)]
            wide = out
        layers.append(nn.MaxPool2d(2))
    top = (nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    return Scaled(nn.Sequential(*layers, *top))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    wide = 64
    for inner, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            shortcut = conv(wide, 4 * inner, 1, stride, activation=None) if block == 0 else None
            path = nn.Sequential(
                conv(wide, inner), conv(inner, inner, 3, stride), conv(inner, 4 * inner, activation=None)
            )
            layers.append(Add(path, shortcut, relu=True))
            wide = 4 * inner
    return Scaled(nn.Sequential(*layers, head(2048)))


def googlenet() -> nn.Module:
    def inception(wide: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> nn.Module:
        return Cat(
            conv(wide, one),
            nn.Sequential(conv(wide, three[0]), conv(*three, 3)),
            nn.Sequential(conv(wide, five[0]), conv(*five, 3)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(wide, pool)),
        )

    def shrink() -> nn.Module:
        return nn.MaxPool2d(3, 2, 1)

    return Scaled(
        nn.Sequential(
            conv(3, 64, 7, 2), shrink(), conv(64, 64), conv(64, 192, 3), shrink(),
            inception(192, 64, (96, 128), (16, 32), 32), inception(256, 128, (128, 192), (32, 96), 64), shrink(),
            inception(480, 192, (96, 208), (16, 48), 64), inception(512, 160, (112, 224), (24, 64), 64),
            inception(512, 128, (128, 256), (24, 64), 64), inception(512, 112, (144, 288), (32, 64), 64),
            inception(528, 256, (160, 320), (32, 128), 128), shrink(),
            inception(832, 256, (160, 320), (32, 128), 128), inception(832, 384, (192, 384), (48, 128), 128),
            head(1024),
        )
    )  # fmt: skip


class _Dense(nn.Module):
    """One layer of a dense block: its output beside its input."""

    def __init__(self, wide: int, growth: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(wide), nn.ReLU(), conv(wide, 4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.path(x)], dim=1)


def densenet161() -> nn.Module:
    growth, wide = 48, 96
    layers: list[nn.Module] = [conv(3, wide, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for block, times in enumerate((6, 12, 36, 24)):
        for _ in range(times):
            layers.append(_Dense(wide, growth))
            wide += growth
        if block < 3:
            between = (nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, wide // 2, 1, bias=False), nn.AvgPool2d(2))
            layers += between
            wide //= 2
    return Scaled(nn.Sequential(*layers, nn.BatchNorm2d(wide), nn.ReLU(), head(wide)))
