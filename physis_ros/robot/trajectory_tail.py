"""The braking tail: from any state to rest within the acceleration limit.

Every trajectory forwarded to the robot ends in one, so the robot comes to rest even when every
process that commanded it is gone. The last velocity is exactly zero, as a trajectory controller
requires. This is software, not a certified safety function: a hardware stop is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_motion import Floats

# Stops closer than this become one point: over a shorter cubic, rounding looks like acceleration.
LEAST_STEP_S = 1e-5
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Points after the state that is braked: times [N] from that state, positions and velocities
    [N, joints]. Joined by cubics they are motion of constant deceleration, exactly. N may be 0."""

    times_s: Floats
    positions: Floats
    velocities: Floats


def braking_tail(position: Floats, velocity: Floats, acceleration: Floats) -> Tail:
    """Brake from (position, velocity), each [joints], at `acceleration` [joints] (all above 0).

    Each joint brakes at its own limit, and so stops as early as it can. It stops at one of the
    points, up to `LEAST_STEP_S` later: where stops lie closer together, the earlier joints brake a
    little less, never more. Times are whole nanoseconds, as a message carries them.
    """
    joints = position.size
    if not velocity.any():
        return Tail(
            times_s=np.empty(0), positions=np.empty((0, joints)), velocities=np.empty((0, joints))
        )
    own_s = np.ceil(np.maximum(np.abs(velocity) / acceleration, LEAST_STEP_S) * _NS_PER_S)
    own_s /= _NS_PER_S
    times = _apart(own_s[velocity != 0.0])
    stop_s = np.where(velocity != 0.0, times[np.searchsorted(times, own_s)], 0.0)
    deceleration = np.divide(velocity, stop_s, out=np.zeros(joints), where=stop_s > 0.0)
    braked_s = np.minimum(times[:, None], stop_s[None, :])
    velocities = velocity - deceleration * braked_s
    # Exactly zero, not nearly: the controller refuses any other last velocity.
    velocities[times[:, None] >= stop_s[None, :]] = 0.0
    positions = position + velocity * braked_s - 0.5 * deceleration * braked_s**2
    return Tail(times_s=times, positions=positions, velocities=velocities)


def _apart(times_s: Floats) -> Floats:
    """Increasing, at least `LEAST_STEP_S` apart: of times that lie closer, the last is kept."""
    points: list[float] = []
    for time_s in sorted(times_s.tolist(), reverse=True):
        if not points or points[-1] - time_s >= LEAST_STEP_S:
            points.append(time_s)
    return np.array(points[::-1])
