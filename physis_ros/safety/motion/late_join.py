"""Joins a command to the current motion such that its message may arrive late.

When a trajectory controller takes a message, it moves by one cubic from the state it commands at
that moment to the message's first point, and follows the points by time after that. So a message
is safe if each of those cubics is within the limits: for every moment at which it may arrive, and
for every motion that the controller may be playing then. This decides how soon the first point may
be due, and how much of the requested change may be forwarded.

The accelerations of a cubic are linear in the states at its ends, so the largest share of a change
that fits follows directly, without search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import (
    Floats,
    JointMotion,
    cubic_bounds,
    cubic_peaks,
    end_accelerations,
)
from physis_ros.safety.motion.possible_motions import Arrivals

# Times tried between the latest arrival and the first point: the earliest that fits deviates least
# from the command.
WAYS_S = (0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.6, 0.9)
_REST_WAYS_S = np.concatenate([np.arange(0.02, 0.4, 0.01), np.arange(0.4, 3.0, 0.05)])
# Rounding is not a violation.
_TOLERANCE = 1e-3
_POSITION_TOLERANCE = 1e-6
_SHRINK = 0.8
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Join:
    """The controller's first point: due at `first_s`, position and velocity [joints].

    `share`: the part of the change from the nominal motion to the command that fits; 1 is the whole
    command. Below 1, `tightest` names the joint that limits it.
    """

    first_s: float
    position: Floats
    velocity: Floats
    share: float
    tightest: str = ""


def join(
    command: JointMotion,
    nominal: JointMotion,
    arrivals: Arrivals,
    limits: RobotLimits,
    firsts_s: Floats,
) -> Join | None:
    """Join at the earliest of `firsts_s` where the whole command fits; else where the largest share
    fits. None where nothing fits."""
    for first_s in firsts_s.tolist():
        position, velocity = command.state(first_s)
        if _fits(arrivals, first_s, position, velocity, limits):
            return Join(first_s=first_s, position=position, velocity=velocity, share=1.0)
    best: Join | None = None
    for first_s in firsts_s.tolist():
        found = _join_part_at(command, nominal, arrivals, limits, first_s)
        if found is not None and (best is None or found.share > best.share):
            best = found
    return best


def rest(arrivals: Arrivals, limits: RobotLimits, latest_s: float) -> Join | None:
    """The earliest rest before `latest_s` that every arrival can reach within the limits.

    A single point: a message that arrives after it is due is refused by the controller.
    """
    most = np.array(limits.acceleration)
    last_arrival_s = float(arrivals.at_s.max())
    for way_s in _REST_WAYS_S.tolist():
        rest_s = last_arrival_s + way_s
        if rest_s >= latest_s:
            return None
        position = _rest_position(arrivals, limits, rest_s, most)
        if position is None:
            continue
        velocity = np.zeros_like(position)
        if _stays_within(arrivals, rest_s, position, velocity, limits):
            return Join(first_s=rest_s, position=position, velocity=velocity, share=1.0)
    return None


def _rest_position(
    arrivals: Arrivals, limits: RobotLimits, rest_s: float, most: Floats
) -> Floats | None:
    """Where each joint can come to rest at `rest_s`, from every state it may have on arrival."""
    way = (rest_s - arrivals.at_s)[:, None]
    room = most * way**2 / 6.0
    # A cubic to rest keeps the acceleration limit if it does at its begin and at its end.
    begin = arrivals.positions + (2.0 / 3.0) * arrivals.velocities * way
    end = arrivals.positions + (1.0 / 3.0) * arrivals.velocities * way
    lowest = (np.maximum(begin, end) - room).max(axis=0)
    highest = (np.minimum(begin, end) + room).min(axis=0)
    if (lowest > highest).any():
        return None
    middle = 0.5 * (lowest + highest)
    inside = np.clip(middle, np.array(limits.lower), np.array(limits.upper))
    return np.asarray(np.clip(inside, lowest, highest))


def _fits(
    arrivals: Arrivals, first_s: float, position: Floats, velocity: Floats, limits: RobotLimits
) -> bool:
    """Whether the cubic from every arrival to this point is within the limits."""
    way = (first_s - arrivals.at_s)[:, None]
    most = np.array(limits.acceleration) * (1.0 + _TOLERANCE)
    ends = end_accelerations(arrivals.positions, arrivals.velocities, position, velocity, way)
    return all(bool((np.abs(end) <= most).all()) for end in ends) and _stays_within(
        arrivals, first_s, position, velocity, limits
    )


def _join_part_at(
    command: JointMotion,
    nominal: JointMotion,
    arrivals: Arrivals,
    limits: RobotLimits,
    first_s: float,
) -> Join | None:
    here, speed = nominal.state(first_s)
    there, there_speed = command.state(first_s)
    change, speed_change = there - here, there_speed - speed
    way = (first_s - arrivals.at_s)[:, None]
    most = np.array(limits.acceleration) * (1.0 + _TOLERANCE)
    zero = np.zeros_like(change)
    least, largest, tightest = -np.inf, 1.0, -1
    for fixed, grows in zip(
        end_accelerations(arrivals.positions, arrivals.velocities, here, speed, way),
        end_accelerations(zero, zero, change, speed_change, way),
    ):
        low, high = _shares(fixed, grows, most)
        least = max(least, float(low.max()))
        joints = high.min(axis=0)
        if joints.min() < largest:
            largest, tightest = float(joints.min()), int(np.argmin(joints))
    name = limits.names[tightest] if tightest >= 0 else ""
    share = largest
    while share >= max(least, _LEAST_SHARE):
        position, velocity = here + share * change, speed + share * speed_change
        if _stays_within(arrivals, first_s, position, velocity, limits):
            return Join(
                first_s=first_s, position=position, velocity=velocity, share=share, tightest=name
            )
        share *= _SHRINK
    return None


def _shares(fixed: Floats, grows: Floats, most: Floats) -> tuple[Floats, Floats]:
    """The least and the largest w with |fixed + w grows| <= most, element by element."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one, other = (-most - fixed) / grows, (most - fixed) / grows
    flat = np.abs(grows) < 1e-12
    fits = np.abs(fixed) <= most
    low = np.where(flat, np.where(fits, -np.inf, np.inf), np.minimum(one, other))
    high = np.where(flat, np.where(fits, np.inf, -np.inf), np.maximum(one, other))
    return low, high


def _stays_within(
    arrivals: Arrivals,
    first_s: float,
    position: Floats,
    velocity: Floats,
    limits: RobotLimits,
) -> bool:
    """Whether speed and position stay within the limits on every cubic to the first point."""
    # A joint that is beyond a limit may move back, but not further out.
    lower = np.minimum(np.array(limits.lower), arrivals.positions) - _POSITION_TOLERANCE
    upper = np.maximum(np.array(limits.upper), arrivals.positions) + _POSITION_TOLERANCE
    fastest = np.maximum(
        np.array(limits.velocity) * (1.0 + _TOLERANCE), np.abs(arrivals.velocities)
    )
    way = (first_s - arrivals.at_s)[:, None]
    # The cheap bounds come first; exact peaks only where the bounds exceed a limit.
    return any(
        bool(
            (peaks.speed <= fastest).all()
            and (peaks.lowest >= lower).all()
            and (peaks.highest <= upper).all()
        )
        for peaks in (
            look(arrivals.positions, arrivals.velocities, position, velocity, way)
            for look in (cubic_bounds, cubic_peaks)
        )
    )
