"""Joins a command to the motion under way so that its message may come late.

Whenever a trajectory controller takes a message, it goes from where it commands the joints to the
message's first point by one cubic, and plays by time from there on. So a message is harmless if
every one of those cubics is within the limits: for each moment at which it may arrive, and for each
motion that the controller may be playing by then. That is what decides here how soon the first
point may lie and how much of the change may be asked for.

The cubic's accelerations are linear in the states at its ends. So the largest share of a change
that fits follows directly, without trying.
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
from physis_ros.safety.possible_motions import Arrivals

# First points that are tried, so long after the latest arrival: the earliest that fits is nearest
# to what was commanded.
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

    `share` of the change from the nominal motion to the command fits; 1: the command itself.
    `tightest` names the joint that allowed no more, where it is less.
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
    """The earliest of `firsts_s` at which the whole command can be joined; else the largest share
    of it at any; None where nothing fits."""
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
    """The soonest rest that every arrival can reach within the limits, before `latest_s`.

    One point alone: a message that comes after it is refused by the controller as past.
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
    """A place where each joint may be told to rest at `rest_s`, whatever it is doing on arrival."""
    way = (rest_s - arrivals.at_s)[:, None]
    room = most * way**2 / 6.0
    # A cubic to rest: its acceleration is within the limit at the beginning, and at the end.
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
    """Whether every way to this point is within the limits."""
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
    """Speed and position on every way to the first point."""
    # A robot that stands beyond a limit may come back, and go no further.
    lower = np.minimum(np.array(limits.lower), arrivals.positions) - _POSITION_TOLERANCE
    upper = np.maximum(np.array(limits.upper), arrivals.positions) + _POSITION_TOLERANCE
    fastest = np.maximum(
        np.array(limits.velocity) * (1.0 + _TOLERANCE), np.abs(arrivals.velocities)
    )
    way = (first_s - arrivals.at_s)[:, None]
    # What keeps within the bounds need not be looked at more closely.
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
