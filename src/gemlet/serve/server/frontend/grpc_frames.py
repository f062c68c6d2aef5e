"""Whether a client of HTTP/2 has begun a header that it has not ended: the library keeps what there is of it and tells
nothing before its end. And how much of what it sent is a few frames: each takes its time, however small it is. Of
frames only their own nine bytes are looked at. Pure."""

from __future__ import annotations

PREFACE_BYTES = 24  # of a client, before its first frame
FRAME_BYTES = 9  # before what is in a frame: its length, type, flags and stream
HEADERS, CONTINUATION = 1, 9
END_HEADERS = 0x4


class Frames:
    """Of one client; what it sends is to be told from its first byte."""

    __slots__ = ("_begun", "_left", "_of_header", "_open")

    def __init__(self) -> None:
        self._left = PREFACE_BYTES  # bytes of the frame that is under way
        self._begun = b""  # of the bytes before the next one
        self._of_header = False  # whether the frame under way is of a header
        self._open = False  # whether another one of that header follows

    @property
    def in_header(self) -> bool:
        return self._open or (self._of_header and self._left > 0)

    def end_of(self, count: int, data: bytes, at: int = 0) -> int:
        """Where so many frames end, beside the one that is under way, of what the client sent from ``at`` on; where
        ``data`` ends, if that is before. Of the bytes before ``at``, took() has been told."""
        end, head = len(data), self._begun
        at += self._left
        if head:
            head += data[at : at + FRAME_BYTES - len(head)]
            if len(head) < FRAME_BYTES:
                return end
            at += FRAME_BYTES - len(self._begun) + _length(head, 0)
        for _ in range(count):
            if end - at < FRAME_BYTES:
                return end
            at += FRAME_BYTES + _length(data, at)
        return min(at, end)

    def took(self, data: bytes) -> None:
        """The client sent this."""
        at, end = self._left, len(data)
        if at > end:
            self._left = at - end
            return
        if self._begun:
            data, self._begun = self._begun + data[at:], b""
            at, end = 0, len(data)
        while end - at >= FRAME_BYTES:
            kind = data[at + 3]
            self._of_header = kind in {HEADERS, CONTINUATION}
            if self._of_header:
                self._open = not data[at + 4] & END_HEADERS
            at += FRAME_BYTES + _length(data, at)
        if at <= end:
            self._begun, self._left = data[at:], 0
        else:
            self._left = at - end


def _length(data: bytes, at: int) -> int:
    return data[at] << 16 | data[at + 1] << 8 | data[at + 2]
