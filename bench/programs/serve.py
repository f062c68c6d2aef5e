"""Answers requests for text one at a time, as they come. A unit is an answer.

    python serve.py [--graph] ...        (protocol.py has the other options)

Parameters of a window: ``rate`` in requests a second (Poisson; 0: the next request is always there already) and
``seed`` of the arrivals. The requests are the same in every window. A unit has ``arrived`` (ns since the start),
``ttft_ms`` (from arrival to the first token), ``prefill_ms`` (the same from when it was taken up) and ``token_ms`` (of
each further token).
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import decode
import llama
import protocol

if TYPE_CHECKING:
    import torch

LENGTHS = [128, 192, 256]  # tokens of a prompt
FEWEST, MOST = 32, 64  # new tokens
REQUESTS = 64  # over and over


def main() -> None:
    parser = protocol.parser(__doc__)
    parser.add_argument("--graph", action="store_true", help="a static cache, and a CUDA graph for each step")
    o = parser.parse_args()
    lengths = [8, 16] if o.tiny else LENGTHS
    model = llama.make(llama.TINY if o.tiny else llama.LARGE, o.device, seed=3).eval()
    decoder = decode.make(model, graph=o.graph, batch=1, longest=max(lengths) + MOST)
    choice = random.Random(5)
    asked = [(choice.choice(lengths), choice.randint(FEWEST, MOST)) for _ in range(REQUESTS)]
    prompts = [llama.tokens(1, length, seed=i, device=o.device) for i, (length, _) in enumerate(asked)]
    for length in lengths:  # libraries choose and load a kernel for each length
        decoder.prefill(llama.tokens(1, length, seed=0, device=o.device))
        decoder.step()
    decode.visit_lengths(decoder, prompts[0][:, : min(lengths)], max(lengths) - min(lengths) + MOST)
    for window in protocol.windows(o):
        arrivals = random.Random(int(window.parameters.get("seed", 1)))
        rate = float(window.parameters.get("rate", 0.0))
        arrival = float(window.start)
        number = 0
        while True:
            if rate:
                arrival += arrivals.expovariate(rate) * 1e9
                time.sleep(max(0.0, (min(arrival, window.end) - time.monotonic_ns()) / 1e9))
            else:
                arrival = float(time.monotonic_ns())
            if arrival >= window.end or window.over():
                break
            answer(decoder, prompts[number % REQUESTS], asked[number % REQUESTS][1], int(arrival), window)
            number += 1


def answer(decoder: decode.Decoder, prompt: torch.Tensor, new: int, arrived: int, window: protocol.Window) -> None:
    taken = time.monotonic_ns()
    text = decoder.prefill(prompt)
    first = last = time.monotonic_ns()
    token_ms = []
    for _ in range(new - 1):
        text += decoder.step()
        now = time.monotonic_ns()
        token_ms.append(round((now - last) / 1e6, 3))
        last = now
    window.unit(
        at=last,
        arrived=arrived - window.start,
        ttft_ms=round((first - arrived) / 1e6, 3),
        prefill_ms=round((first - taken) / 1e6, 3),
        token_ms=token_ms,
    )
    window.digest(str(text).encode() + llama.logit_bytes(decoder.logits))


if __name__ == "__main__":
    main()
