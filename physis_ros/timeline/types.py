"""The nouns of the action timeline: its configuration and what it gives out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from physis_core.types import UserError
from physis_ros.robot.joint_motion import Floats
from physis_ros.timeline.chunk_overlap import Overlap

Underrun = Literal["brake", "coast"]
UNDERRUN_POLICIES: tuple[Underrun, ...] = ("brake", "coast")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineConfig:
    """`tick_s`: servo period. `lead_s`: time from now to a hand-over, at least one controller
    period, so that the command arrives before its first point is due. `underrun`: when no valid
    point is left, `brake` at once, or `coast` for `coast_s` and then brake. `correction_share`: the
    share of the acceleration limit used for the transition to a new chunk; more is faster and
    rougher.
    """

    tick_s: float = 0.01
    lead_s: float = 0.05
    overlap: Overlap = field(default_factory=Overlap)
    underrun: Underrun = "brake"
    coast_s: float = 0.0
    correction_share: float = 0.6
    max_age_s: float = 2.0
    max_ahead_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("tick_s", "max_age_s", "max_ahead_s"):
            value = getattr(self, name)
            if not 0.0 < value <= 3600.0:
                raise UserError(name, value, "must be above 0 and at most 3600")
        if not 0.0 <= self.lead_s <= 10.0:
            raise UserError("lead_s", self.lead_s, "must be at least 0 and at most 10")
        if not 0.0 <= self.coast_s <= 10.0:
            raise UserError("coast_s", self.coast_s, "must be at least 0 and at most 10")
        if not 0.0 < self.correction_share <= 1.0:
            raise UserError(
                "correction_share", self.correction_share, "must be above 0 and at most 1"
            )
        if self.underrun not in UNDERRUN_POLICIES:
            known = ", ".join(UNDERRUN_POLICIES)
            raise UserError("underrun", self.underrun, f"must be one of {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChunk:
    """`trimmed_s`: the expired beginning of the chunk, which is not played."""

    trimmed_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServoPoint:
    """The point of one servo tick; position, velocity [joints].

    `valid` is False in an underrun (the tail, or rest). `age_s` counts from the OLDEST observation
    behind the point; NaN in an underrun.
    """

    position: Floats
    velocity: Floats
    valid: bool
    epoch: int
    chunk_id: int
    capture_oldest_ns: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimelineWindow:
    """The plan from the hand-over to rest: times [N] counted from now, positions and velocities
    [N, joints]. The last velocity is exactly zero."""

    times_s: Floats
    positions: Floats
    velocities: Floats


@dataclass(slots=True)
class TimelineCounts:
    accepted: int = 0
    refused: int = 0
    late: int = 0
