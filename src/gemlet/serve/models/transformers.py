"""BERT base (2018) and GPT-2 small (2019), the latter for one token after a cache of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gemlet.serve.models.built_in import DECODER_PAST, DECODER_VOCABULARY, VOCABULARY

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEADS, LAYERS = 768, 12, 12  # of both
DECODER_BATCH = 32  # rows of the cache


class _Block(nn.Module):
    """Attention and MLP; norms behind them (BERT) or before them (GPT-2)."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        if self.before:
            x = x + self.attend(self.first(x), past)
            return x + self.mlp(self.second(x))
        x = self.first(x + self.attend(x, past))
        return self.second(x + self.mlp(x))

    def attend(self, x: Tensor, past: Tensor | None) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if past is not None:  # (2, rows, heads, tokens, width of a head)
            k, v = torch.cat([past[0, :rows], k], 2), torch.cat([past[1, :rows], v], 2)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class _Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)  # of a token's sentence; all are of the first
        self.norm, self.pool = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(_Block(before=False) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]] + self.kinds.weight[0])
        for block in self.blocks:
            x = block(x)
        return self.pool(x[:, 0]).tanh().float()


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(DECODER_VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(_Block(before=True) for _ in range(LAYERS))
        cache = torch.randn(LAYERS, 2, DECODER_BATCH, HEADS, DECODER_PAST, WIDTH // HEADS)
        self.register_buffer("cache", cache)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[DECODER_PAST]
        for block, past in zip(self.blocks, self.cache, strict=True):
            x = block(x, past)
        scores = functional.linear(self.norm(x[:, -1]), self.words.weight)
        return scores.argmax(-1, keepdim=True)


def bert() -> nn.Module:
    return _Bert()


def decoder() -> nn.Module:
    return _Decoder()
