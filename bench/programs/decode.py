"""Greedy decoding with transformers, one step at a time: eager, or as a CUDA graph over a static cache."""

from __future__ import annotations

from typing import Protocol

import torch
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

CAPTURE_WARM_UP = 3  # steps before the capture: libraries load kernels and take workspaces


class Decoder(Protocol):
    logits: torch.Tensor  # of the last token, [batch, vocabulary]

    def prefill(self, prompt: torch.Tensor) -> list[int]: ...
    def step(self) -> list[int]: ...


class Eager:
    """As people write it: the model is called with the cache, the tokens come to the host after each step."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model

    def prefill(self, prompt: torch.Tensor) -> list[int]:
        self.cache = DynamicCache(config=self.model.config)
        return self._forward(prompt)

    def step(self) -> list[int]:
        return self._forward(self.next)

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor) -> list[int]:
        out = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.logits = out.logits[:, -1]
        self.next = self.logits.argmax(-1, keepdim=True)
        return self.next.flatten().tolist()  # waits


class Static:
    """The cache has a fixed size, and a step is one CUDA graph. On a CPU a step is the same without the graph."""

    @torch.inference_mode()
    def __init__(self, model: LlamaForCausalLM, batch: int, longest: int) -> None:
        self.model = model
        self.device = model.device
        self.cache = StaticCache(config=model.config, max_cache_len=longest)
        self.next = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        self.columns = torch.arange(longest, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.prefill(torch.zeros(batch, 8, dtype=torch.long, device=self.device))
        if self.device.type == "cuda":
            self._capture()

    @torch.inference_mode()
    def prefill(self, prompt: torch.Tensor) -> list[int]:
        self.cache.reset()
        out = self.model(prompt, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[:, -1]
        if self.graph is None:
            self.logits = logits
        else:
            self.logits.copy_(logits)
        self.next.copy_(logits.argmax(-1, keepdim=True))
        self.position.fill_(prompt.shape[1])
        return self.next.flatten().tolist()

    @torch.inference_mode()
    def step(self) -> list[int]:
        if self.graph is None:
            self._compute()
        else:
            self.graph.replay()
        return self.next.flatten().tolist()

    def _compute(self) -> None:
        # A mask of four dimensions is taken as it is. Without one, a token would see the empty part of the cache.
        mask = (self.columns <= self.position).view(1, 1, 1, -1).expand(self.next.shape[0], 1, 1, -1)
        out = self.model(
            self.next, past_key_values=self.cache, attention_mask=mask, position_ids=self.position, use_cache=True
        )
        self.logits = out.logits[:, -1]
        self.next.copy_(self.logits.argmax(-1, keepdim=True))
        self.position.add_(1)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UP):
                self._compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        self.graph = graph


def visit_lengths(decoder: Decoder, prompt: torch.Tensor, steps: int) -> None:
    """Decodes ``steps`` tokens, so that no window meets a length of the cache for the first time.

    With a cache that grows, each length is a shape of its own, for which cuDNN's attention makes a plan once a process:
    on an H200 a step that did took 73 ms, and 21 ms the next time. Without this, windows compare how far each program
    had come.
    """
    decoder.prefill(prompt)
    if isinstance(decoder, Eager):
        for _ in range(steps):
            decoder.step()


def make(model: LlamaForCausalLM, *, graph: bool, batch: int, longest: int) -> Decoder:
    return Static(model, batch, longest) if graph else Eager(model)
