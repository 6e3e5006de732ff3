"""Motion of all joints between timed points, evaluated exactly as a trajectory controller does.

Points with positions and velocities are joined by cubics; after the last point the motion rests
there. Times are seconds of one clock that the caller chooses and keeps to.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class JointMotion:
    """Times [N] strictly increasing; positions and velocities [N, joints]."""

    def __init__(self, times_s: Floats, positions: Floats, velocities: Floats) -> None:
        if times_s.size < 1 or positions.shape != velocities.shape:
            raise ValueError("a motion has at least one point, and a velocity for each position")
        if positions.shape[0] != times_s.size or np.any(np.diff(times_s) <= 0.0):
            raise ValueError("one strictly later time for each point")
        self.times_s = times_s
        self.positions = positions
        self.velocities = velocities
        self._times: list[float] = times_s.tolist()

    @classmethod
    def at_rest(cls, position: Floats, at_s: float) -> JointMotion:
        return cls(np.array([at_s]), position[None, :].copy(), np.zeros((1, position.size)))

    @property
    def start_s(self) -> float:
        return self._times[0]

    @property
    def end_s(self) -> float:
        return self._times[-1]

    def state(self, at_s: float) -> tuple[Floats, Floats]:
        """Position and velocity, each [joints], at `at_s`. Before the first point: the first
        point."""
        if at_s >= self._times[-1]:
            return self.positions[-1].copy(), np.zeros(self.positions.shape[1])
        if at_s <= self._times[0]:
            return self.positions[0].copy(), self.velocities[0].copy()
        index = bisect_right(self._times, at_s) - 1
        step_s = self._times[index + 1] - self._times[index]
        return hermite(
            self.positions[index],
            self.velocities[index],
            self.positions[index + 1],
            self.velocities[index + 1],
            step_s,
            at_s - self._times[index],
        )


def hermite(
    q0: Floats, v0: Floats, q1: Floats, v1: Floats, step_s: float, after_s: float
) -> tuple[Floats, Floats]:
    """Position and velocity of the cubic through (q0, v0) and (q1, v1), `after_s` after q0."""
    s = after_s / step_s
    rise = q1 - q0
    position = (
        q0
        + (s * s * (3.0 - 2.0 * s)) * rise
        + (s * (1.0 - s) * (1.0 - s) * step_s) * v0
        - (s * s * (1.0 - s) * step_s) * v1
    )
    velocity = (
        (6.0 * s * (1.0 - s) / step_s) * rise
        + ((1.0 - s) * (1.0 - 3.0 * s)) * v0
        + (s * (3.0 * s - 2.0)) * v1
    )
    return position, velocity


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPeaks:
    """Extremes of each cubic between neighbouring points, each [N - 1, joints]."""

    lowest: Floats
    highest: Floats
    speed: Floats
    acceleration: Floats


def segment_peaks(times_s: Floats, positions: Floats, velocities: Floats) -> SegmentPeaks:
    """The extremes inside every segment, not only at its ends: a cubic can leave its end points."""
    step = np.diff(times_s)[:, None]
    q0, q1, v0, v1 = positions[:-1], positions[1:], velocities[:-1], velocities[1:]
    rise = q1 - q0
    a0 = 6.0 * rise / step**2 - (4.0 * v0 + 2.0 * v1) / step
    a1 = -6.0 * rise / step**2 + (2.0 * v0 + 4.0 * v1) / step
    jerk = (a1 - a0) / step
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = np.where(jerk != 0.0, -a0 / jerk, -1.0)
        inside = (turn > 0.0) & (turn < step)
        turn_speed = np.where(inside, np.abs(v0 + 0.5 * a0 * turn), 0.0)
        # Where the velocity crosses zero the position has an extreme.
        root = np.sqrt(np.maximum(a0**2 - 2.0 * jerk * v0, 0.0))
        stops = [
            np.where(jerk != 0.0, (-a0 - root) / jerk, np.where(a0 != 0.0, -v0 / a0, -1.0)),
            np.where(jerk != 0.0, (-a0 + root) / jerk, -1.0),
        ]
    lowest, highest = np.minimum(q0, q1), np.maximum(q0, q1)
    for stop in stops:
        at = np.where((stop > 0.0) & (stop < step), stop, 0.0)
        there = q0 + at * (v0 + at * (0.5 * a0 + at * jerk / 6.0))
        lowest, highest = np.minimum(lowest, there), np.maximum(highest, there)
    return SegmentPeaks(
        lowest=lowest,
        highest=highest,
        speed=np.maximum(np.maximum(np.abs(v0), np.abs(v1)), turn_speed),
        acceleration=np.maximum(np.abs(a0), np.abs(a1)),
    )
