"""Whether a header is under way shows in the bytes of frames, in whatever pieces they come."""

from __future__ import annotations

import random

import pytest

from gemlet.serve.server.frontend.grpc_frames import Frames
from tests.unit.serve.server.frontend.test_grpc_bytes import PREFACE, frame

HEADERS, DATA, SETTINGS, CONTINUATION, END = 1, 0, 4, 9, 4
WHOLE = frame(HEADERS, END, 1, b"abc")
BEGUN = frame(HEADERS, 0, 3, b"abc")


@pytest.mark.parametrize(
    ("sent", "in_header"),
    [
        (b"", False),
        (WHOLE, False),
        (WHOLE[:-1], True),
        (WHOLE[:9], True),
        (WHOLE[:8], False),  # which frame it will be is not known
        (BEGUN, True),
        (BEGUN + frame(CONTINUATION, 0, 3, b"")[:8], True),
        (BEGUN + frame(CONTINUATION, 0, 3, b""), True),
        (BEGUN + frame(CONTINUATION, END, 3, b"a")[:-1], True),
        (BEGUN + frame(CONTINUATION, END, 3, b"a"), False),
        (WHOLE + BEGUN, True),
        (frame(HEADERS, END, 1, b""), False),
        (frame(DATA, 0, 1, b"\1" * 70_000)[:-1], False),
        (frame(DATA, 0, 1, b"\1" * 70_000) + WHOLE, False),
        (frame(DATA, END, 1, b"") + WHOLE[:-1], True),
    ],
)
def test_a_header_is_under_way_until_its_last_byte(sent, in_header):
    pieces = random.Random(1)
    for most in (1, 10, 100_000):
        frames, left = Frames(), PREFACE + sent
        while left:
            size = pieces.randint(1, most)
            frames.took(left[:size])
            left = left[size:]
        assert frames.in_header == in_header


def test_a_few_frames_end_where_they_would_in_one_piece():
    sizes = (0, 3, 300, 0, 70_000, 1, 0, 0, 2)
    data, ends = PREFACE, [len(PREFACE)]
    for size in sizes:
        data += frame(DATA, 0, 1, bytes(size))
        ends.append(len(data))
    for begun in range(len(PREFACE), len(data)):
        if ends[4] + 20 < begun < ends[5] - 20:
            continue  # all alike
        frames = Frames()
        frames.took(data[:begun])
        under_way = begun not in ends
        following = [end for end in ends if end > begun][under_way:]
        for count in (1, 2, 3):
            expected = following[count - 1] if count <= len(following) else len(data)
            assert frames.end_of(count, data, begun) == expected
