"""Checks of a whole commanded trajectory: names, sizes, numbers, times, limits, jump.

Pure: a trajectory, the commanded state it starts from, and limits in; a checked trajectory, or one
violation that names joint, value and limit, out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import CommandedTrajectory, Floats, cubic_bounds, segment_peaks
from physis_ros.robot.trajectory_tail import braking_tail

_MAX_POINTS = 10_000
# Rounding (float to text, cubics of other libraries) is not a violation.
_RELATIVE_TOLERANCE = 1e-3
_POSITION_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Why a trajectory may not go to the robot, in one line."""

    check: str
    detail: str

    @property
    def reason(self) -> str:
        return f"{self.check}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedTrajectory:
    """In the robot's joint order: times [N] from now, positions and velocities [N, joints].

    `velocities_given` is False where the points came without velocities and `with_slopes` has not
    run yet.
    """

    times_s: Floats
    positions: Floats
    velocities: Floats
    velocities_given: bool = True


def read_trajectory(
    command: CommandedTrajectory, limits: RobotLimits, *, longest_s: float
) -> CheckedTrajectory | Violation:
    """Check names (in each message anew), sizes, finite numbers and increasing times."""
    names = tuple(command.joint_names)
    for name in limits.names:
        if names.count(name) != 1:
            state = "missing" if name not in names else "named twice"
            return Violation(check="joint names", detail=f"{name} is {state}")
    for name in names:
        if name not in limits.names:
            return Violation(check="joint names", detail=f"{name} is not a joint of this robot")
    count = len(command.times_s)
    if not 1 <= count <= _MAX_POINTS:
        return Violation(check="size", detail=f"{count} points, expected 1 to {_MAX_POINTS}")
    for kind, rows in (("positions", command.positions), ("velocities", command.velocities)):
        if kind == "velocities" and not any(len(row) for row in rows):
            continue
        if len(rows) != count:
            return Violation(check="size", detail=f"{len(rows)} {kind} for {count} times")
        for index, row in enumerate(rows):
            if len(row) != len(names):
                return Violation(
                    check="size",
                    detail=f"point {index} has {len(row)} {kind} for {len(names)} joints",
                )
    order = [names.index(name) for name in limits.names]
    times = np.asarray(command.times_s, dtype=np.float64)
    positions = np.asarray(command.positions, dtype=np.float64)[:, order]
    given = any(len(row) for row in command.velocities)
    velocities = (
        np.asarray(command.velocities, dtype=np.float64)[:, order]
        if given
        else np.zeros_like(positions)
    )
    for kind, values in (("position", positions), ("velocity", velocities)):
        bad = np.argwhere(~np.isfinite(values))
        if bad.size:
            point, joint = bad[0]
            return Violation(
                check="finite",
                detail=f"{limits.names[joint]}: {kind} {values[point, joint]} at point {point}",
            )
    if not np.isfinite(times).all():
        return Violation(check="finite", detail="a time is not finite")
    late = np.argwhere(np.diff(times) <= 0.0)
    if times[0] < 0.0 or late.size:
        point = int(late[0][0]) + 1 if late.size else 0
        return Violation(
            check="times", detail=f"point {point} at {times[point]:.4f} s does not come later"
        )
    if times[-1] > longest_s:
        return Violation(
            check="times", detail=f"it lasts {times[-1]:.3f} s, limit {longest_s:.3f} s"
        )
    return CheckedTrajectory(
        times_s=times, positions=positions, velocities=velocities, velocities_given=given
    )


def with_slopes(
    trajectory: CheckedTrajectory, position: Floats, velocity: Floats
) -> CheckedTrajectory:
    """Give velocities to points that came without: the slopes of the path that begins at the
    commanded state (position, velocity) and ends at rest."""
    if trajectory.velocities_given:
        return trajectory
    times = np.concatenate([[0.0], trajectory.times_s])
    path = np.concatenate([position[None, :], trajectory.positions])
    slopes = np.gradient(path, times, axis=0)[1:]
    slopes[-1] = 0.0
    return replace(trajectory, velocities=slopes, velocities_given=True)


def unwrapped(
    trajectory: CheckedTrajectory, position: Floats, limits: RobotLimits
) -> CheckedTrajectory:
    """Move continuous joints by whole turns next to `position` [joints]; leave the others."""
    if not any(limits.wraps):
        return trajectory
    positions = trajectory.positions.copy()
    for joint, wraps in enumerate(limits.wraps):
        if wraps:
            turned = np.unwrap(positions[:, joint])
            first = limits.unwrapped(joint, float(turned[0]), float(position[joint]))
            positions[:, joint] = turned + (first - turned[0])
    return replace(trajectory, positions=positions)


def without_expired(
    trajectory: CheckedTrajectory, *, elapsed_s: float, first_at_s: float
) -> CheckedTrajectory | Violation:
    """Count times from now, and drop points due before `first_at_s` from now."""
    times = trajectory.times_s - elapsed_s
    keep = times >= first_at_s - 1e-9
    if not keep.any():
        return Violation(
            check="age", detail=f"its last point was due {-float(times[-1]):.3f} s ago"
        )
    return replace(
        trajectory,
        times_s=times[keep],
        positions=trajectory.positions[keep],
        velocities=trajectory.velocities[keep],
    )


def with_tail(
    trajectory: CheckedTrajectory, limits: RobotLimits, *, share: float = 1.0
) -> CheckedTrajectory:
    """Append a braking tail that uses `share` of the acceleration limit, unless the trajectory ends
    at rest."""
    last = trajectory.velocities[-1]
    if not last.any():
        return trajectory
    tail = braking_tail(trajectory.positions[-1], last, share * np.array(limits.acceleration))
    return CheckedTrajectory(
        times_s=np.concatenate([trajectory.times_s, trajectory.times_s[-1] + tail.times_s]),
        positions=np.concatenate([trajectory.positions, tail.positions]),
        velocities=np.concatenate([trajectory.velocities, tail.velocities]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCheck:
    """`violation`: a limit that slowing down cannot keep. Without one, `slower` is the factor by
    which time must be stretched so that velocity and acceleration fit (1: they fit), and `over` the
    limit that asks for it."""

    violation: Violation | None
    slower: float = 1.0
    over: Violation | None = None


def check_limits(trajectory: CheckedTrajectory, limits: RobotLimits) -> LimitCheck:
    """Check every cubic between the points, inside as well as at its ends. How the controller
    reaches the first point is checked by physis_ros.safety.motion.late_join."""
    # Rest after the last point is a segment too, so that a single point is checked.
    times = np.concatenate([trajectory.times_s, [trajectory.times_s[-1] + 1.0]])
    positions = np.concatenate([trajectory.positions, trajectory.positions[-1:]])
    velocities = np.concatenate([trajectory.velocities, trajectory.velocities[-1:]])
    lower, upper = np.array(limits.lower), np.array(limits.upper)
    bounds = cubic_bounds(
        positions[:-1], velocities[:-1], positions[1:], velocities[1:], np.diff(times)[:, None]
    )
    if (
        (bounds.lowest >= lower - _POSITION_TOLERANCE).all()
        and (bounds.highest <= upper + _POSITION_TOLERANCE).all()
        and (bounds.speed <= np.array(limits.velocity) * (1.0 + _RELATIVE_TOLERANCE)).all()
        and (bounds.acceleration <= np.array(limits.acceleration)).all()
    ):
        return LimitCheck(violation=None)
    peaks = segment_peaks(times, positions, velocities)
    for limit, most, over in (
        (lower, peaks.lowest, peaks.lowest < lower - _POSITION_TOLERANCE),
        (upper, peaks.highest, peaks.highest > upper + _POSITION_TOLERANCE),
    ):
        if over.any():
            segment, joint = np.argwhere(over)[0]
            return LimitCheck(
                violation=Violation(
                    check="position",
                    detail=f"{limits.names[joint]}: {most[segment, joint]:.4f} beyond "
                    f"{limit[joint]:.4f}, {times[segment]:.3f} s ahead",
                )
            )
    worst = 1.0
    worst_violation: Violation | None = None
    for check, values, most, power in (
        ("velocity", peaks.speed, np.array(limits.velocity), 1.0),
        ("acceleration", peaks.acceleration, np.array(limits.acceleration), 0.5),
    ):
        ratio = values / most
        segment, joint = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        largest = float(ratio[segment, joint])
        if largest > 1.0 + _RELATIVE_TOLERANCE and largest**power > worst:
            worst = largest**power
            worst_violation = Violation(
                check=check,
                detail=f"{limits.names[joint]}: {values[segment, joint]:.4f} above "
                f"{most[joint]:.4f}, {times[segment]:.3f} s ahead",
            )
    return LimitCheck(violation=None, slower=worst, over=worst_violation)


def slowed(trajectory: CheckedTrajectory, factor: float) -> CheckedTrajectory:
    """The same path, `factor` times slower."""
    return CheckedTrajectory(
        times_s=trajectory.times_s * factor,
        positions=trajectory.positions,
        velocities=trajectory.velocities / factor,
    )


def check_jump(
    trajectory: CheckedTrajectory, position: Floats, velocity: Floats, limits: RobotLimits
) -> Violation | None:
    """Compare the first point with where the commanded motion will be by then."""
    first_s = float(trajectory.times_s[0])
    ahead_s = min(first_s, 0.1)
    apart = np.abs(trajectory.positions[0] - position - ahead_s * velocity)
    # A later first point leaves time to get there; its speed is checked separately.
    most = np.array(limits.jump) + np.array(limits.velocity) * max(0.0, first_s - 0.1)
    if not (apart > most).any():
        return None
    joint = int(np.argmax(apart / most))
    return Violation(
        check="jump",
        detail=f"{limits.names[joint]}: {apart[joint]:.4f} from the commanded state, "
        f"limit {most[joint]:.4f}",
    )
