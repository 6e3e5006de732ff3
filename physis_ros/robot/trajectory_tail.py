"""The braking tail: from any state to rest within the acceleration limit.

Whatever is forwarded to the robot ends in one, so that the robot comes to a stop by itself even
when every process that commanded it is gone. The last velocity is exactly zero, as a trajectory
controller demands. This is a courtesy of software: it is not a certified safety function, and a
hardware stop is needed.
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

    @property
    def duration_s(self) -> float:
        return float(self.times_s[-1]) if self.times_s.size else 0.0


def rest_position(position: Floats, velocity: Floats, acceleration: Floats) -> Floats:
    """Where each joint comes to rest when it brakes from here at its limit. All [joints]."""
    return np.asarray(position + velocity * np.abs(velocity) / (2.0 * acceleration))


def stopping_time_s(velocity: Floats, acceleration: Floats) -> float:
    return float(np.max(np.abs(velocity) / acceleration, initial=0.0))


def braking_tail(
    position: Floats,
    velocity: Floats,
    acceleration: Floats,
    *,
    synchronised: bool = False,
    step_s: float | None = None,
) -> Tail:
    """Brake from (position, velocity), each [joints], at `acceleration` [joints] (all above 0).

    Each joint brakes at its own limit and so stops soonest; `synchronised` stretches them all to
    the time of the slowest, which keeps the path straight in joint space but lengthens it.
    Position limits hold if `rest_position` was inside them when braking began (never with
    `synchronised` alone: `rest_position` is then too optimistic for the quicker joints).
    `step_s` adds points so that none are further apart, for controllers that join points linearly.
    """
    speed = np.abs(velocity)
    stop_s = speed / acceleration
    longest_s = float(np.max(stop_s, initial=0.0))
    joints = position.size
    if longest_s == 0.0:
        return Tail(
            times_s=np.empty(0), positions=np.empty((0, joints)), velocities=np.empty((0, joints))
        )
    if synchronised:
        stop_s = np.where(speed > 0.0, longest_s, 0.0)
    times = _distinct(np.maximum(stop_s[stop_s > 0.0], _LEAST_STEP_S))
    if step_s is not None:
        times = _distinct(np.concatenate([times, np.arange(step_s, longest_s, step_s)]))
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
