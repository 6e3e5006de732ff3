"""Reads the wanted joints from joint states, in the wanted order.

Joints are looked up by name in every message: publishers permute them, omit some, add `_mimic` and
gripper joints, and two publishers may each send half of a robot. A missing joint stays missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from physis_core.types import Array, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class JointReading:
    """One joint of one message. Velocity None: unknown."""

    name: str
    stamp_ns: int
    position: float
    velocity: float | None


class JointValues(Protocol):
    """The fields of a sensor_msgs/JointState that are read here."""

    @property
    def name(self) -> Sequence[str]: ...
    @property
    def position(self) -> Sequence[float]: ...
    @property
    def velocity(self) -> Sequence[float]: ...


def with_prefix(name: str, joint_prefix: str) -> str:
    """The joint's name in the robot's messages; the model may leave the prefix out."""
    return name if name.startswith(joint_prefix) else f"{joint_prefix}{name}"


def joint_readings(
    message: JointValues, wanted: Sequence[str], *, stamp_ns: int
) -> tuple[JointReading, ...]:
    """The wanted joints of one message, each with the message's stamp; other joints are ignored.

    Velocity is None (unknown, not zero) where the message has none, or NaN as drivers without a
    velocity sensor send.

    Raises:
        UserError: array sizes differ, a joint is named twice, or a wanted joint's position is not
            finite.
    """
    names = message.name
    count = len(names)
    if len(message.position) != count:
        raise UserError(
            "joint_states.position", len(message.position), f"{count} names need {count} positions"
        )
    if len(message.velocity) not in (0, count):
        raise UserError(
            "joint_states.velocity", len(message.velocity), f"must be empty or {count} values"
        )
    at: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in at:
            raise UserError("joint_states.name", name, "stands in one message twice")
        at[name] = index
    readings = []
    for name in wanted:
        index_or_none = at.get(name)
        if index_or_none is None:
            continue
        position = float(message.position[index_or_none])
        if not math.isfinite(position):
            raise UserError(f"joint_states.position[{name}]", position, "must be finite")
        velocity: float | None = None
        if len(message.velocity):
            given = float(message.velocity[index_or_none])
            velocity = given if math.isfinite(given) else None
        readings.append(
            JointReading(name=name, stamp_ns=stamp_ns, position=position, velocity=velocity)
        )
    return tuple(readings)


def whole_state(message: JointValues, names: Sequence[str]) -> tuple[Array, Array] | None:
    """Positions and velocities [names] of one message; None where one of them is missing.

    Raises:
        UserError: as `joint_readings`.
    """
    readings = joint_readings(message, names, stamp_ns=0)
    velocities = [reading.velocity for reading in readings if reading.velocity is not None]
    if len(velocities) != len(names):
        return None
    return np.array([reading.position for reading in readings]), np.array(velocities)
