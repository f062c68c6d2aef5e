"""Generates text for a batch of prompts, over and over. A unit is a token.

    python generate.py [--graph] [--batch 16] ...        (protocol.py has the other options)

Eager, a step launches hundreds of short kernels and waits for its host most of the time; with --graph a step is one
launch that keeps the device busy.
"""

from __future__ import annotations

import decode
import llama
import protocol

PROMPT, NEW = 128, 128  # tokens
EACH = 32  # steps: a checksum of all logits


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--graph", action="store_true", help="a static cache, and a CUDA graph for each step")
    parser.add_argument("--batch", type=int, default=16)
    o = parser.parse_args()
    model = llama.make(llama.TINY if o.tiny else llama.LARGE, o.device).eval()
    decoder = decode.make(model, graph=o.graph, batch=o.batch, longest=PROMPT + NEW)
    prompts = [llama.tokens(o.batch, PROMPT, seed=seed, device=o.device) for seed in range(4)]
    decode.visit_lengths(decoder, prompts[0], NEW)
    for _ in range(8):
        decoder.step()
    for window in protocol.windows(o, parameters=sum(p.numel() for p in model.parameters())):
        rounds = 0
        while not window.over():
            decoder.prefill(prompts[rounds % len(prompts)])
            window.unit(o.batch)
            for step in range(1, NEW):
                if window.over():
                    break
                decoder.step()
                window.unit(o.batch)
                if step % EACH == 0:
                    window.digest(llama.logit_bytes(decoder.logits))
            rounds += 1


if __name__ == "__main__":
    main()
