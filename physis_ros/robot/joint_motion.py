"""Motion of all joints between timed points, evaluated exactly as a trajectory controller does.

Points with positions and velocities are joined by cubics; after the last point the motion rests.
Times are seconds of one clock of the caller's choice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommandedTrajectory:
    """An unchecked trajectory: `times_s` [N] from its start, a row of `positions` and `velocities`
    for each time. Rows may differ in length. Empty `velocities`: none were given.
    """

    joint_names: Sequence[str]
    times_s: Sequence[float]
    positions: Sequence[Sequence[float]] | Floats
    velocities: Sequence[Sequence[float]] | Floats = ()


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

    def going_over(self, at_s: float, points: JointMotion) -> JointMotion:
        """The motion of a controller that takes `points` at `at_s`, before the first is due: this
        motion until then, and one cubic to the first point."""
        kept = self.times_s < at_s
        position, velocity = self.state(at_s)
        return JointMotion(
            np.concatenate([self.times_s[kept], [at_s], points.times_s]),
            np.concatenate([self.positions[kept], position[None, :], points.positions]),
            np.concatenate([self.velocities[kept], velocity[None, :], points.velocities]),
        )

    def since(self, at_s: float) -> JointMotion:
        """The same motion, beginning at `at_s`."""
        after = self.times_s > at_s
        position, velocity = self.state(at_s)
        return JointMotion(
            np.concatenate([[at_s], self.times_s[after]]),
            np.concatenate([position[None, :], self.positions[after]]),
            np.concatenate([velocity[None, :], self.velocities[after]]),
        )

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

    def states(self, at_s: Floats) -> tuple[Floats, Floats]:
        """`state` at many times [T]: positions and velocities [T, joints]."""
        last = len(self._times) - 1
        if last == 0:
            return np.repeat(self.positions, at_s.size, axis=0), self._rest_after(at_s)
        at = np.clip(at_s, self.times_s[0], self.times_s[-1])
        index = np.minimum(np.searchsorted(self.times_s, at, side="right") - 1, last - 1)
        step = (self.times_s[index + 1] - self.times_s[index])[:, None]
        positions, velocities = hermite(
            self.positions[index],
            self.velocities[index],
            self.positions[index + 1],
            self.velocities[index + 1],
            step,
            (at - self.times_s[index])[:, None],
        )
        velocities[at_s >= self.times_s[-1]] = 0.0
        return positions, velocities

    def _rest_after(self, at_s: Floats) -> Floats:
        velocities = np.repeat(self.velocities, at_s.size, axis=0)
        velocities[at_s >= self.times_s[-1]] = 0.0
        return velocities


def hermite(
    q0: Floats,
    v0: Floats,
    q1: Floats,
    v1: Floats,
    step_s: float | Floats,
    after_s: float | Floats,
) -> tuple[Floats, Floats]:
    """Position and velocity of the cubic through (q0, v0) and (q1, v1), `after_s` after q0."""
    s = after_s / step_s
    rest = 1.0 - s
    rise = q1 - q0
    # In place from the first product on, which has the full shape already.
    position = (s * s * (3.0 - 2.0 * s)) * rise
    position += q0
    position += (s * rest * rest * step_s) * v0
    position -= (s * s * rest * step_s) * v1
    velocity = (6.0 * s * rest / step_s) * rise
    velocity += (rest * (1.0 - 3.0 * s)) * v0
    velocity += (s * (3.0 * s - 2.0)) * v1
    return position, velocity


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPeaks:
    """Extremes of cubics, one a row, each [rows, joints]."""

    lowest: Floats
    highest: Floats
    speed: Floats
    acceleration: Floats


def segment_peaks(times_s: Floats, positions: Floats, velocities: Floats) -> SegmentPeaks:
    """Extremes inside every segment: a cubic may leave the range of its end points."""
    return cubic_peaks(
        positions[:-1], velocities[:-1], positions[1:], velocities[1:], np.diff(times_s)[:, None]
    )


def end_accelerations(
    q0: Floats, v0: Floats, q1: Floats, v1: Floats, step_s: Floats
) -> tuple[Floats, Floats]:
    """Acceleration at both ends of a cubic; it is linear in between, and linear in each state."""
    rise = 6.0 * (q1 - q0) / step_s**2
    return rise - (4.0 * v0 + 2.0 * v1) / step_s, (2.0 * v0 + 4.0 * v1) / step_s - rise


def cubic_bounds(q0: Floats, v0: Floats, q1: Floats, v1: Floats, step: Floats) -> SegmentPeaks:
    """Bounds of what `cubic_peaks` finds, at a third of the time: a cubic lies within the hull of
    its Bezier points, and its velocity within that of the velocity's (G. Farin, Curves and Surfaces
    for CAGD, the convex hull property). The accelerations are the same."""
    a0, a1 = end_accelerations(q0, v0, q1, v1, step)
    third = step / 3.0
    leaves, reaches = q0 + third * v0, q1 - third * v1
    return SegmentPeaks(
        lowest=np.minimum(np.minimum(q0, q1), np.minimum(leaves, reaches)),
        highest=np.maximum(np.maximum(q0, q1), np.maximum(leaves, reaches)),
        speed=np.maximum(np.maximum(np.abs(v0), np.abs(v1)), np.abs(reaches - leaves) / third),
        acceleration=np.maximum(np.abs(a0), np.abs(a1)),
    )


def cubic_peaks(q0: Floats, v0: Floats, q1: Floats, v1: Floats, step: Floats) -> SegmentPeaks:
    """The extremes of cubics from (q0, v0) to (q1, v1), rows that broadcast; `step` [rows, 1]."""
    a0, a1 = end_accelerations(q0, v0, q1, v1, step)
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
