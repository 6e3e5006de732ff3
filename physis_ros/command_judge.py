"""Judges one command against the motion under way: what may go to the robot, or why nothing may.

Pure. A command is read, trimmed to what lies ahead, spliced into the motion, given a tail and
checked
whole; where it is a little too fast it is slowed down, and where it came too late to touch the
motion
it is joined at a later point.
"""

from __future__ import annotations

from typing import Protocol

from physis_ros.command_splice import spliced
from physis_ros.joint_limits import RobotLimits
from physis_ros.joint_motion import JointMotion
from physis_ros.safety_checks import (
    CheckedTrajectory,
    CommandedTrajectory,
    Floats,
    LimitCheck,
    Violation,
    check_jump,
    check_limits,
    joined_after,
    read_trajectory,
    slowed,
    unwrapped,
    with_slopes,
    with_tail,
    without_expired,
)

_LEAST_SLOWING = 1.001
# A command that came late and no longer touches the motion under way is joined at a later point.
_JOIN_LATER_S = (0.05, 0.1, 0.2, 0.3)


class JudgeRules(Protocol):
    """The part of the safety configuration that judging needs; see SafetyConfig."""

    @property
    def lead_s(self) -> float: ...
    @property
    def command_age_s(self) -> float: ...
    @property
    def longest_command_s(self) -> float: ...
    @property
    def align_s(self) -> float: ...
    @property
    def slow_most(self) -> float: ...


def judged(
    command: CommandedTrajectory,
    motion: JointMotion,
    motion_s: float,
    limits: RobotLimits,
    rules: JudgeRules,
    *,
    started_s: float,
) -> tuple[CheckedTrajectory, Violation | None] | Violation:
    position, velocity = state = motion.state(motion_s)
    lead_s = rules.lead_s
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
        unwrapped(read, position, limits), elapsed_s=started_s, first_at_s=lead_s
    )
    if isinstance(fresh, Violation):
        return fresh
    shaped = with_slopes(fresh, position, velocity)
    jumped = check_jump(shaped, position, velocity, limits)
    if jumped is not None:
        return jumped
    placed = with_tail(
        spliced(
            shaped,
            motion,
            motion_s,
            first_at_s=lead_s,
            align_s=rules.align_s,
        ),
        limits,
    )
    first_found: LimitCheck | None = None
    for join_s in (lead_s, *(later_s for later_s in _JOIN_LATER_S if later_s > lead_s)):
        trajectory = joined_after(placed, join_s)
        found = check_limits(trajectory, position, velocity, limits)
        if found.violation is None and found.over is None:
            return trajectory, None
        first_found = first_found or found
    assert first_found is not None
    if first_found.violation is not None:
        return first_found.violation
    assert first_found.over is not None
    return _slow_down(placed, state, first_found.slower, first_found.over, limits, rules.slow_most)


def _slow_down(
    trajectory: CheckedTrajectory,
    state: tuple[Floats, Floats],
    factor: float,
    over: Violation,
    limits: RobotLimits,
    slow_most: float,
) -> tuple[CheckedTrajectory, Violation] | Violation:
    factor *= _LEAST_SLOWING
    while factor <= slow_most:
        candidate = slowed(trajectory, factor)
        found = check_limits(candidate, state[0], state[1], limits)
        if found.violation is not None:
            return found.violation
        if found.over is None:
            return candidate, over
        factor *= max(found.slower, 1.02)
    return over
