"""Joins a new command to the motion that the robot already follows.

A stream's next window repeats the motion that is under way up to its first point. A message takes a
little longer one time than another, so that point is first moved in time to where the motion really
passes through it; then the motion's own points lead up to it. So no hand-over changes the speed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from physis_ros.joint_motion import JointMotion
from physis_ros.safety_checks import CheckedTrajectory, Floats

# Beyond these the command does not continue the motion; it is then reached directly, and checked
# as such.
_POSITION_FIT = 2e-3
_VELOCITY_FIT = 0.1
# Points closer than this make a segment on which rounding looks like acceleration.
_LEAST_STEP_S = 1e-3
_NEWTON_STEPS = 4


def spliced(
    trajectory: CheckedTrajectory,
    motion: JointMotion,
    now_s: float,
    *,
    first_at_s: float,
    align_s: float,
) -> CheckedTrajectory:
    """The trajectory (times from now) with the motion's points before it, where it continues the
    motion;
    else as it was. `align_s`: by how much it may be moved in time."""
    wanted_s = now_s + float(trajectory.times_s[0])
    meets_s = _meeting(trajectory, motion, wanted_s, align_s)
    if meets_s is None:
        return trajectory
    moved = replace(trajectory, times_s=trajectory.times_s + (meets_s - wanted_s))
    lead_s = now_s + first_at_s
    ahead = moved.times_s >= first_at_s - 1e-9
    if not ahead.any():
        return trajectory
    before = (motion.times_s >= lead_s) & (motion.times_s < meets_s - _LEAST_STEP_S)
    return replace(
        moved,
        times_s=np.concatenate([motion.times_s[before] - now_s, moved.times_s[ahead]]),
        positions=np.concatenate([motion.positions[before], moved.positions[ahead]]),
        velocities=np.concatenate([motion.velocities[before], moved.velocities[ahead]]),
    )


def _meeting(
    trajectory: CheckedTrajectory, motion: JointMotion, wanted_s: float, align_s: float
) -> float | None:
    """When the motion passes through the first point; None where it does not, within `align_s`."""
    position, velocity = trajectory.positions[0], trajectory.velocities[0]
    at_s = wanted_s
    for _ in range(_NEWTON_STEPS):
        here, speed = motion.state(at_s)
        weight = float(speed @ speed)
        if weight < 1e-8:
            break
        step_s = float((position - here) @ speed) / weight
        at_s = min(max(at_s + step_s, wanted_s - align_s), wanted_s + align_s)
        if abs(step_s) < 1e-7:
            break
    nearest_s = float(motion.times_s[np.argmin(np.abs(motion.times_s - at_s))])
    if abs(nearest_s - at_s) < _LEAST_STEP_S and _fits(motion, nearest_s, position, velocity):
        return nearest_s
    return at_s if _fits(motion, at_s, position, velocity) else None


def _fits(motion: JointMotion, at_s: float, position: Floats, velocity: Floats) -> bool:
    here, speed = motion.state(at_s)
    return bool(
        np.max(np.abs(here - position)) <= _POSITION_FIT
        and np.max(np.abs(speed - velocity)) <= _VELOCITY_FIT
    )
