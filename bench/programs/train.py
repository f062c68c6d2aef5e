"""Trains a language model eagerly: all its weights, or LoRA's of peft. A unit is a step.

    python train.py [--lora] [--batch 8] [--length 128] ...        (protocol.py has the other options)

A small batch is bound by its host. A large one (--batch 8 --length 512) keeps the device busy without a pause.
"""

from __future__ import annotations

import time
from collections import deque

import llama
import protocol
import torch
from torch import nn

IN_FLIGHT = 2  # steps: enough to keep the device busy
WARM_UP = 4
DATA = 8  # batches, over and over


class Trainer:
    def __init__(self, model: nn.Module, batch: int, length: int, device: str) -> None:
        self.model = model.train()
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, foreach=True)
        self.data = [llama.tokens(batch, length, seed=seed, device=device) for seed in range(DATA)]
        self.initial = [p.detach().clone() for p in self.weights]

    def reset(self) -> None:
        """The state before the first step, with the optimizer's memory where it is."""
        with torch.no_grad():
            for weight, initial in zip(self.weights, self.initial, strict=True):
                weight.copy_(initial)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self.steps = 0

    def step(self) -> torch.Tensor:
        tokens = self.data[self.steps % DATA]
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach()


class Done:
    """A point in the device's work, to wait for, and the loss there. On a CPU work is done when the call returns."""

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss
        self.event = torch.cuda.Event() if loss.is_cuda else None
        if self.event:
            self.event.record()

    def wait(self) -> int:
        if self.event:
            self.event.synchronize()
        return time.monotonic_ns()


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--lora", action="store_true", help="adapters of rank 16 on a model of 1.1 billion parameters")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    o = parser.parse_args()
    model: nn.Module = llama.make(llama.TINY if o.tiny else llama.LARGE if o.lora else llama.MEDIUM, o.device, seed=7)
    if o.lora:
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters)
    trainer = Trainer(model, 2 if o.tiny else o.batch, 16 if o.tiny else o.length, o.device)
    trainer.steps = 0
    for _ in range(WARM_UP):
        Done(trainer.step()).wait()
    for window in protocol.windows(o, parameters=sum(p.numel() for p in trainer.weights)):
        trainer.reset()
        losses = []
        pending: deque[Done] = deque()
        while not window.over():
            pending.append(Done(trainer.step()))
            if len(pending) > IN_FLIGHT:
                window.unit(at=pending[0].wait())
                losses.append(pending.popleft().loss)
        for done in pending:
            window.unit(at=done.wait())
            losses.append(done.loss)
        for loss in torch.stack(losses).float().cpu().numpy() if losses else ():
            window.digest(loss.tobytes())


if __name__ == "__main__":
    main()
