"""What the controller did, for people and programs to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.serve.control.settings import Cause


@dataclass(frozen=True, slots=True)
class Change:
    """One plan that was made: when (seconds of the controller's clock), why, and its outcome.

    gpus: devices of the plan; stayed, moved: gpu-lets that were there before and that were not; took_s: from the
    reason to the plan in force; failure: why it is not in force.
    """

    at: float
    cause: Cause
    gpus: int
    stayed: int
    moved: int
    part: float
    took_s: float
    notes: tuple[str, ...] = ()
    failure: str | None = None

    def __str__(self) -> str:
        if self.failure is not None:
            return f"planned anew ({self.cause.text}), and failed: {self.failure}"
        less = f", for {self.part:.0%} of the rates" if self.part < 1 else ""
        devices, gpu_lets = (
            f"{self.gpus} device{'s' * (self.gpus != 1)}",
            f"{self.moved} gpu-let{'s' * (self.moved != 1)}",
        )
        return (
            f"planned anew ({self.cause.text}): {devices}{less}, {gpu_lets} changed and {self.stayed} as before,"
            f" in force after {1000 * self.took_s:.0f} ms"
        )
