"""Notices when ROS time and steady time part: a clock that was set, a simulation that restarted or
stands still.

Pure: both clocks are given at each call.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump:
    """ROS time moved by `delta_s` more (or less) than it should have."""

    delta_s: float


class ClockJumpWatch:
    """Compares two looks at a ROS clock.

    Wall time must advance as steady time does; simulated time may pause or run at any rate, so that
    only going back, or forward by more than `threshold_s` at `max_rate` times real time, is a
    jump. The first look, and time zero (no /clock yet), are never jumps.
    """

    def __init__(self, *, threshold_s: float, simulated: bool, max_rate: float = 20.0) -> None:
        self._threshold_s = threshold_s
        self._simulated = simulated
        self._max_rate = max_rate
        self._last: tuple[int, float] | None = None
        self._moved: tuple[int, float] | None = None

    def standstill(self, steady_s: float) -> str:
        """Why simulated time does not advance, as of the last look; empty where it does."""
        if not self._simulated or self._moved is None:
            return ""
        ros_ns, moved_s = self._moved
        still_s = steady_s - moved_s
        if still_s <= self._threshold_s:
            return ""
        if ros_ns == 0:
            return f"no /clock for {still_s:.1f} s"
        return f"/clock stands still at {ros_ns * 1e-9:.3f} for {still_s:.1f} s"

    def look(self, *, ros_ns: int, steady_s: float) -> ClockJump | None:
        if self._moved is None or ros_ns != self._moved[0]:
            self._moved = (ros_ns, steady_s)
        last = self._last
        if ros_ns == 0:
            return None
        self._last = (ros_ns, steady_s)
        if last is None:
            return None
        ros_step_s = (ros_ns - last[0]) / 1e9
        steady_step_s = steady_s - last[1]
        if self._simulated:
            if ros_step_s < 0.0:
                return ClockJump(delta_s=ros_step_s)
            if ros_step_s > self._threshold_s + self._max_rate * steady_step_s:
                return ClockJump(delta_s=ros_step_s)
            return None
        drift_s = ros_step_s - steady_step_s
        return ClockJump(delta_s=drift_s) if abs(drift_s) > self._threshold_s else None
