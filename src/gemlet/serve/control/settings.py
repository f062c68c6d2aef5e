"""The controller's settings, and how it describes itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gemlet.serve.plan.model import PlanOptions

Reason = Literal["start", "rates", "overload", "queue", "devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Seconds, requests/s, numbers of devices.

    period_s: plan anew at most so often, emergencies apart, for the rates of horizon_s later. tick_s: look at the
    counts so often. floor_rate: what every model is planned for at least. down_after_s: a rate must have been lower for
    so long. emergency_gap_s: between two emergency plans for overload. least, most: devices in use; most None: all that
    live.
    """

    period_s: float = 2.5
    horizon_s: float = 5.0
    tick_s: float = 0.1
    floor_rate: float = 1.0
    down_after_s: float = 30.0
    emergency_gap_s: float = 0.5
    least: int = 1
    most: int | None = None
    policy: str = "nway+type"
    planner: PlanOptions = field(default_factory=PlanOptions)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why to plan anew, in a sentence; an emergency does not wait for the period to end."""

    reason: Reason
    text: str
    emergency: bool = False
