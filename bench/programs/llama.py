"""A causal language model of Hugging Face transformers in Llama's shape, with random weights."""

from __future__ import annotations

import os

# Read when cuBLAS is first used; without it, results may differ from run to run (PyTorch, "Reproducibility").
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 32_000
# 1.1 billion parameters: TinyLlama's shape.
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
         "num_key_value_heads": 4}  # fmt: skip
# 0.37 billion: what one trains beside something else.
MEDIUM = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24, "num_attention_heads": 16,
          "num_key_value_heads": 16}  # fmt: skip
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2}  # fmt: skip


def make(shape: dict[str, int], device: str, *, seed: int = 1) -> LlamaForCausalLM:
    """The same weights in every process, made on the device."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=2048, tie_word_embeddings=False, **shape)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)


def tokens(batch: int, length: int, *, seed: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator).to(device)


def logit_bytes(logits: torch.Tensor) -> bytes:
    """Every bit of them, on the host."""
    return logits.detach().contiguous().view(torch.int16).cpu().numpy().tobytes()
