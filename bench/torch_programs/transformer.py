"""A transformer in plain PyTorch, the same weights in every run.

Attention is written out: matrix products and a softmax give the same bits each time, where fused kernels choose among
algorithms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# Read when cuBLAS is first used; without it, its results may differ from run to run (PyTorch, "Reproducibility").
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    width: int
    layers: int
    heads: int
    vocabulary: int
    context: int  # tokens of a sequence
    batch: int  # sequences


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (d // self.heads) ** -0.5 + mask
        x = x + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm_mlp(x))


class Transformer(nn.Module):
    """Tokens [batch, context] to logits [batch, context, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.randn(shape.context, shape.width) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        causal = torch.full((shape.context, shape.context), float("-inf")).triu(1)
        self.register_buffer("mask", causal, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.norm(x) @ self.tokens.weight.t()


def make(shape: Shape, device: str, seed: int) -> Transformer:
    """In bfloat16 on the device; made on the CPU, so that the weights do not depend on the device."""
    if device == "cpu":
        torch.set_num_threads(1)  # two of these programs run at a time
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)  # if there is none, the run goes on, and its bits show it
    torch.utils.deterministic.fill_uninitialized_memory = False  # no extra kernels
    return Transformer(shape).to(device=device, dtype=torch.bfloat16)


def token_batches(shape: Shape, count: int, seed: int) -> torch.Tensor:
    """[count, batch, context + 1], on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocabulary, (count, shape.batch, shape.context + 1), generator=generator)
