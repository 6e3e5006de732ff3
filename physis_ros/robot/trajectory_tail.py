"""The braking tail: from any state to rest within the acceleration limit.

Every trajectory forwarded to the robot ends in one, so the robot comes to rest even when every
process that commanded it is gone. The last velocity is exactly zero, as a trajectory controller
requires. This is software, not a certified safety function: a hardware stop is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_motion import Floats

# Messages carry whole nanoseconds; points closer than this would be lost in rounding.
_LEAST_STEP_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Points after the state that is braked: times [N] from that state, positions and velocities
    [N, joints]. Joined by cubics they are motion of constant deceleration, exactly. N may be 0."""

    times_s: Floats
    positions: Floats
    velocities: Floats


def braking_tail(position: Floats, velocity: Floats, acceleration: Floats) -> Tail:
    """Brake from (position, velocity), each [joints], at `acceleration` [joints] (all above 0).

    Each joint brakes at its own limit, and so stops as early as it can.
    """
    speed = np.abs(velocity)
    stop_s = speed / acceleration
    joints = position.size
    if not velocity.any():
        return Tail(
            times_s=np.empty(0), positions=np.empty((0, joints)), velocities=np.empty((0, joints))
        )
    times = _distinct(np.maximum(stop_s[stop_s > 0.0], _LEAST_STEP_S))
    deceleration = np.divide(velocity, stop_s, out=np.zeros(joints), where=stop_s > 0.0)
    braked_s = np.minimum(times[:, None], stop_s[None, :])
    velocities = velocity - deceleration * braked_s
    # Exactly zero, not nearly: the controller refuses any other last velocity.
    velocities[times[:, None] >= stop_s[None, :]] = 0.0
    positions = position + velocity * braked_s - 0.5 * deceleration * braked_s**2
    return Tail(times_s=times, positions=positions, velocities=velocities)


def _distinct(times_s: Floats) -> Floats:
    """Sorted, without neighbours closer than a microsecond; the last is always kept."""
    ordered = np.unique(times_s)
    keep = np.append(np.diff(ordered) > _LEAST_STEP_S, True)
    return np.asarray(ordered[keep])
