"""Judges one command against the current motion: what to forward, or why nothing.

Pure. The command is read, gets velocities and a braking tail, and is checked whole. One that is
slightly too fast is slowed down. Then it is joined to every motion that the controller may be
playing, so that it stays within the limits even if its message arrives late
(physis_ros.safety.motion.late_join).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats, JointMotion
from physis_ros.safety.motion.checks import (
    CheckedTrajectory,
    LimitCheck,
    Violation,
    check_jump,
    check_limits,
    read_trajectory,
    slowed,
    unwrapped,
    with_slopes,
    with_tail,
    without_expired,
)
from physis_ros.safety.motion.controller_estimate import ControllerEstimate
from physis_ros.safety.motion.late_join import WAYS_S, Join, join
from physis_ros.safety.motion.tool_limits import ToolLimits

_LEAST_SLOWING = 1.001
# Tried after WAYS_S: by then the motions that are possible have come to rest.
_LONG_WAYS_S = (1.2, 1.6, 2.2, 3.0)
# One cubic across a motion may need 5/3 of that motion's acceleration. A motion that uses more than
# 3/5 of the limit may leave the next command no cubic within the limits.
_GENTLE_SHARE = 0.6
_SLOWING_STEP = 1.04
# Points closer than this may become one when a message rounds them to nanoseconds.
_APART_S = 1e-5
# A point due sooner than this counts as expired.
_NOW_S = 1e-3


class JudgeRules(Protocol):
    """The fields of SafetyConfig that judging needs."""

    @property
    def late_s(self) -> float: ...
    @property
    def command_age_s(self) -> float: ...
    @property
    def longest_command_s(self) -> float: ...
    @property
    def slow_most(self) -> float: ...
    @property
    def tool(self) -> ToolLimits | None: ...


def judge_command(
    command: CommandedTrajectory,
    estimate: ControllerEstimate,
    motion_s: float,
    limits: RobotLimits,
    rules: JudgeRules,
    *,
    started_s: float,
) -> tuple[CheckedTrajectory, Violation | None] | Violation:
    """Return what to forward and what limited it (None: nothing did), or why nothing is forwarded.

    Raises:
        RuntimeError: the estimate holds no motion yet.
    """
    judged = _judged(command, estimate, motion_s, limits, rules, started_s)
    if isinstance(judged, Violation) or rules.tool is None or estimate.motion is None:
        return judged
    motion = _from_here(judged[0], *estimate.motion.state(motion_s), motion_s)
    return rules.tool.check(motion) or judged


def _judged(
    command: CommandedTrajectory,
    estimate: ControllerEstimate,
    motion_s: float,
    limits: RobotLimits,
    rules: JudgeRules,
    started_s: float,
) -> tuple[CheckedTrajectory, Violation | None] | Violation:
    nominal = estimate.motion
    if nominal is None:
        raise RuntimeError("nothing is known of the controller yet")
    position, velocity = nominal.state(motion_s)
    placed = _placed(command, position, velocity, limits, rules, started_s)
    if isinstance(placed, Violation):
        return placed
    arrivals = estimate.arrivals(motion_s)
    factor, over, best = 1.0, None, None
    first_s, most = float(placed.times_s[0]), rules.slow_most
    a_stream = first_s <= rules.late_s
    if not a_stream:
        # A single motion may be slowed by as much time as its message may be late.
        most += rules.late_s / first_s
    while factor <= most:
        candidate = slowed(placed, factor)
        found = check_limits(candidate, limits)
        if found.violation is not None:
            return found.violation
        if found.over is not None:
            over = found.over
            factor *= max(found.slower * _LEAST_SLOWING, _LEAST_SLOWING)
            continue
        motion = _from_here(candidate, position, velocity, motion_s)
        firsts_s = _firsts_s(candidate, motion_s, rules)
        joined = join(motion, nominal, arrivals, limits, firsts_s)
        if joined is None and a_stream:
            joined = join(motion, nominal, arrivals, limits, _later_s(firsts_s, motion_s, rules))
        if joined is not None and joined.share == 1.0:
            return _whole(motion, joined, motion_s, limits), over
        if joined is not None and (best is None or joined.share > best.share):
            best = joined
        if a_stream:
            # The stream sends the next command soon; a partial join is enough now.
            break
        factor *= _SLOWING_STEP
        over = over or _late(joined)
    if best is not None:
        return _partly(best, limits, motion_s)
    return over or _late(None)


def _placed(
    command: CommandedTrajectory,
    position: Floats,
    velocity: Floats,
    limits: RobotLimits,
    rules: JudgeRules,
    started_s: float,
) -> CheckedTrajectory | Violation:
    if abs(started_s) > rules.command_age_s:
        return Violation(
            check="age",
            detail=f"it starts {-started_s:+.3f} s from now by its stamp, "
            f"limit {rules.command_age_s:g} s",
        )
    read = read_trajectory(command, limits, longest_s=rules.longest_command_s)
    if isinstance(read, Violation):
        return read
    fresh = without_expired(
        unwrapped(read, position, limits), elapsed_s=started_s, first_at_s=_NOW_S
    )
    if isinstance(fresh, Violation):
        return fresh
    shaped = with_slopes(fresh, position, velocity)
    return (
        check_jump(shaped, position, velocity, limits)
        or _check_horizon(shaped, rules)
        or with_tail(shaped, limits)
    )


def _check_horizon(trajectory: CheckedTrajectory, rules: JudgeRules) -> Violation | None:
    """A command that ends in motion before the controller's first point may be due cannot be
    followed: only its braking would be."""
    reach_s, needed_s = float(trajectory.times_s[-1]), rules.late_s + WAYS_S[0]
    if reach_s >= needed_s - _NOW_S or not trajectory.velocities[-1].any():
        return None
    return Violation(
        check="horizon",
        detail=f"it ends in motion {reach_s:.3f} s ahead; a command must reach at least "
        f"{needed_s:.3f} s ahead (late_s {rules.late_s:g} s and {WAYS_S[0]:g} s), or end at rest",
    )


def _from_here(
    trajectory: CheckedTrajectory, position: Floats, velocity: Floats, motion_s: float
) -> JointMotion:
    return JointMotion(
        motion_s + np.concatenate([[0.0], trajectory.times_s]),
        np.concatenate([position[None, :], trajectory.positions]),
        np.concatenate([velocity[None, :], trajectory.velocities]),
    )


def _firsts_s(trajectory: CheckedTrajectory, motion_s: float, rules: JudgeRules) -> Floats:
    """When the controller's first point may be due: not before the command's own first point, and
    not after its last, so that the robot does not come to rest later than commanded."""
    soonest_s = max(rules.late_s + WAYS_S[0], float(trajectory.times_s[0]))
    latest_s = max(soonest_s, float(trajectory.times_s[-1]))
    later = [rules.late_s + way_s for way_s in WAYS_S]
    between = [first_s for first_s in later if soonest_s < first_s < latest_s]
    return motion_s + np.array(sorted({soonest_s, *between, latest_s}))


def _later_s(firsts_s: Floats, motion_s: float, rules: JudgeRules) -> Floats:
    """First points later than the command's own end, where no earlier one can be reached from every
    motion that is possible: the robot comes to rest later than commanded."""
    later_s = motion_s + rules.late_s + np.array(WAYS_S + _LONG_WAYS_S)
    return np.asarray(later_s[later_s > firsts_s[-1]])


def _whole(
    motion: JointMotion, joined: Join, motion_s: float, limits: RobotLimits
) -> CheckedTrajectory:
    after = motion.times_s > joined.first_s + _APART_S
    whole = CheckedTrajectory(
        times_s=np.concatenate([[joined.first_s], motion.times_s[after]]) - motion_s,
        positions=np.concatenate([joined.position[None, :], motion.positions[after]]),
        velocities=np.concatenate([joined.velocity[None, :], motion.velocities[after]]),
    )
    # Joined at the very end, the command's last point may be too close to keep.
    return whole if after.any() else with_tail(whole, limits)


def _partly(
    joined: Join, limits: RobotLimits, motion_s: float
) -> tuple[CheckedTrajectory, Violation] | Violation:
    """Go to a state between the nominal motion and the command, then brake to rest: gently, so that
    the next command can be joined to it, or fully where a position limit is too near for that."""
    first = CheckedTrajectory(
        times_s=np.array([joined.first_s - motion_s]),
        positions=joined.position[None, :],
        velocities=joined.velocity[None, :],
    )
    found = LimitCheck(violation=None)
    for share in (_GENTLE_SHARE, 1.0):
        trajectory = with_tail(first, limits, share=share)
        found = check_limits(trajectory, limits)
        if found.violation is None and found.over is None:
            return trajectory, _late(joined)
    return found.violation or found.over or _late(joined)


def _late(joined: Join | None) -> Violation:
    if joined is None:
        return Violation(check="join", detail="no motion to it is within the limits if late")
    return Violation(
        check="join",
        detail=f"{joined.tightest}: {joined.share:.0%} of the change fits if it arrives late",
    )
