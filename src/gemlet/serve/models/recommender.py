"""DLRM (2019) as for Criteo's data: embedding bags, an MLP of the dense features, products, an MLP of all."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gemlet.serve.models.built_in import TABLE_ROWS, TABLES

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 32


def _mlp(*wides: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, out in pairwise(wides):
        layers += [nn.Linear(wide, out), nn.ReLU()]
    return nn.Sequential(*layers)


class _Dlrm(nn.Module):
    """All tables are one, so that one kernel looks into them all."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.table = nn.Parameter(torch.empty(TABLES * rows, WIDTH).normal_(std=0.05), requires_grad=False)
        self.bottom = _mlp(13, 512, 256, WIDTH)
        pairs = TABLES * (TABLES + 1) // 2
        self.top = nn.Sequential(_mlp(WIDTH + pairs, 512, 256), nn.Linear(256, 1))
        self.register_buffer("starts", torch.arange(TABLES).view(1, TABLES, 1) * rows, persistent=False)
        self.register_buffer("pairs", torch.triu_indices(TABLES + 1, TABLES + 1, 1), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        count, tables, bag = sparse.shape
        places = (sparse.remainder(self.rows) + self.starts).view(count * tables, bag)
        bags = functional.embedding_bag(places, self.table, mode="sum").view(count, tables, WIDTH)
        low = self.bottom(dense.to(self.table.dtype))
        features = torch.cat([low.unsqueeze(1), bags], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([low, products], 1)).float().sigmoid()


def dlrm(rows: int = TABLE_ROWS) -> nn.Module:
    return _Dlrm(rows)
