"""Parameters of buffer_node, with ranges and units; their values are in
config/buffer_node.param.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from physis_ros.node.parameters import param
from physis_ros.robot.parameters import RobotParameters
from physis_ros.timeline.chunk_overlap import POLICIES, Overlap, OverlapPolicy
from physis_ros.timeline.types import UNDERRUN_POLICIES, TimelineConfig, Underrun

WINDOW_STARTS = ("stamped", "immediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferParameters(RobotParameters):
    velocity_share: float = param(
        0.95, description="Share of the velocity limits that is used", minimum=0.05, maximum=1.0
    )
    acceleration_share: float = param(
        0.6,
        description="Share of the acceleration limits that is used. A controller moves to a new "
        "window by one cubic, which may need 5/3 of the acceleration of the motion it replaces",
        minimum=0.05,
        maximum=1.0,
    )
    stream_id: str = param("", description="Stream that this robot plays; empty: any")
    servo_hz: float = param(
        100.0, description="Rate of control points", unit="Hz", minimum=10.0, maximum=1000.0
    )
    window_start: str = param(
        "stamped",
        description="stamped: a window carries its start time, so latency costs no accuracy; "
        "immediate: stamp 0, it starts on arrival",
        choices=WINDOW_STARTS,
    )
    lead_s: float = param(
        0.06,
        description="Time from now to a hand-over; covers the latency to safety_node",
        unit="s",
        minimum=0.0,
        maximum=1.0,
    )
    overlap: str = param(
        "replace", description="How overlapping chunks are merged", choices=POLICIES
    )
    fade_s: float = param(
        0.1, description="Cross-fade of overlap: blend", unit="s", minimum=0.001, maximum=10.0
    )
    ensemble_decay: float = param(
        0.5,
        description="Weight of the n-th newest chunk is exp(-decay n) in overlap: ensemble",
        minimum=0.0,
        maximum=100.0,
    )
    correction_share: float = param(
        0.6,
        description="Share of the acceleration used for the transition to a new chunk",
        minimum=0.05,
        maximum=1.0,
    )
    underrun: str = param(
        "brake", description="What to do when no valid point is left", choices=UNDERRUN_POLICIES
    )
    coast_s: float = param(
        0.1,
        description="How long underrun: coast continues before it brakes",
        unit="s",
        minimum=0.0,
        maximum=2.0,
    )
    max_action_age_s: float = param(
        2.0,
        description="Points based on an older observation are not played",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )
    max_ahead_s: float = param(
        5.0,
        description="A chunk that starts further ahead is refused",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )
    deadline_s: float = param(
        0.5,
        description="Requested DDS deadline of action_chunk; not below the engine's offer",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    lease_s: float = param(
        1.0,
        description="Requested DDS liveliness lease of action_chunk; not below the engine's offer",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )
    window_chunks: int = param(
        600, description="Chunks in the sliding window of percentiles", minimum=1, maximum=1000000
    )
    window_servo: int = param(
        6000,
        description="Servo ticks in the sliding window of percentiles",
        minimum=1,
        maximum=10000000,
    )
    rate_window_s: float = param(
        5.0, description="Sliding window of the rates", unit="s", minimum=0.1, maximum=3600.0
    )
    status_hz: float = param(
        5.0, description="Rate of stream_status", unit="Hz", minimum=0.1, maximum=100.0
    )
    record_path: str = param(
        "", description="Directory for chunks.rows and servo.rows; empty: no record"
    )

    def timeline(self) -> TimelineConfig:
        # The parameters' own check of their choices came first.
        policy, underrun = cast(OverlapPolicy, self.overlap), cast(Underrun, self.underrun)
        return TimelineConfig(
            tick_s=1.0 / self.servo_hz,
            lead_s=self.lead_s,
            overlap=Overlap(policy=policy, fade_s=self.fade_s, decay=self.ensemble_decay),
            underrun=underrun,
            coast_s=self.coast_s,
            correction_share=self.correction_share,
            max_age_s=self.max_action_age_s,
            max_ahead_s=self.max_ahead_s,
        )
