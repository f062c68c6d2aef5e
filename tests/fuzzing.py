"""Inputs from a corpus, changed at random: what the fuzzers of configuration, API and webhook share.

``GEMLET_FUZZ_SECONDS`` makes a run longer and ``GEMLET_FUZZ_SEED`` repeats one. An input that failed belongs into
`tests/corpus`, where every run begins with it.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("GEMLET_FUZZ_SECONDS", "2"))
SEED = int(os.environ.get("GEMLET_FUZZ_SEED", str(time.time_ns() % 1_000_000)))
LARGEST = 40_000  # bytes
WORDS = [
    *(
        b"\0",
        b"\xff",
        b"\x1b[2J",
        "\u202e".encode(),
        "²".encode(),
        b"\xed\xa0\x80",
        b"\\u0000",
        b"\\ud800",
        b"\n",
        b'"',
        b"'",
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"[[",
        b".",
        b"=",
        b",",
        b":",
        b"#",
        b"0x",
        b"-1",
        b"1e999",
        b"nan",
        b"inf",
        b"null",
        b"true",
    ),
    *(b"4294967295", b"4294967296", b"9223372036854775808", b"0.5", b'"none"', b'"*"', b"../", b"//", b"/./"),
]


def inputs(kind: str) -> Iterator[bytes]:
    """The corpus of ``kind`` as it is, then changes of it, until the time is over."""
    corpus = [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]
    assert corpus, f"no corpus of {kind}"
    yield from corpus
    dice, end = random.Random(SEED), time.monotonic() + SECONDS
    while time.monotonic() < end:
        text = bytearray(dice.choice(corpus))
        for _ in range(dice.choice([1, 1, 2, 4, 16])):
            _change(dice, text, corpus)
        yield bytes(text[:LARGEST])


def _change(dice: random.Random, text: bytearray, corpus: list[bytes]) -> None:
    at = dice.randrange(len(text) + 1)
    until = min(len(text), at + dice.choice([0, 1, 2, 8, 64]))
    match dice.randrange(7):
        case 0:
            text[at:until] = dice.choice(WORDS)
        case 1:
            text[at:at] = dice.choice(WORDS) * dice.choice([1, 2, 40, 5000])
        case 2:
            del text[at:until]
        case 3:
            text[at:at] = text[at:until] * dice.choice([1, 2, 300])
        case 4:
            other = dice.choice(corpus)
            begin = dice.randrange(len(other) + 1)
            text[at:until] = other[begin : begin + dice.choice([1, 16, 200])]
        case 5:
            text[at:until] = dice.randbytes(until - at)
        case _:
            text[at:until] = str(
                dice.choice([0, -1, 2**31, 2**32, 2**63, 2**64, dice.random(), dice.randrange(1000)])
            ).encode()
