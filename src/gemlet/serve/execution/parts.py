"""Streams on parts of a GPU, by groups of SMs; made once, used again."""

from __future__ import annotations

import torch

from gemlet.devices.green import SmGroups


class Parts:
    """Streams by range of groups. The whole device is an ordinary stream: no context limits it."""

    def __init__(self, device: int = 0) -> None:
        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")  # the primary context, which green contexts need
        self.groups = SmGroups(device)
        self.device = device
        self._streams: dict[tuple[int, int], torch.cuda.Stream] = {}

    def stream(self, first: int, count: int) -> torch.cuda.Stream:
        """A stream on the groups first .. first + count - 1; the same one each time."""
        key = (first, count)
        if key not in self._streams:
            self._streams[key] = self.another_stream(first, count)
        return self._streams[key]

    def another_stream(self, first: int, count: int) -> torch.cuda.Stream:
        """A new one each time."""
        if count >= self.groups.count:
            return torch.cuda.Stream()
        return torch.cuda.ExternalStream(self.groups.stream(first, count).handle, device=self.device)
