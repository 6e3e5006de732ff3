"""Joint names and limits of the arm of the demonstration (UR5e class)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from physis_core.types import Array

JOINT_NAMES: tuple[str, ...] = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
"""In the order of the kinematic chain, which is also the model's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLimits:
    """Per joint, in the order of `names`."""

    names: tuple[str, ...]
    lower_rad: tuple[float, ...]
    upper_rad: tuple[float, ...]
    velocity_rad_s: tuple[float, ...]
    acceleration_rad_s2: tuple[float, ...]

    @property
    def lower(self) -> Array:
        return np.array(self.lower_rad)

    @property
    def upper(self) -> Array:
        return np.array(self.upper_rad)

    @property
    def velocity(self) -> Array:
        return np.array(self.velocity_rad_s)

    @property
    def acceleration(self) -> Array:
        return np.array(self.acceleration_rad_s2)


_TURN = 2.0 * math.pi

UR5E_LIMITS = ArmLimits(
    names=JOINT_NAMES,
    lower_rad=(-_TURN, -_TURN, -math.pi, -_TURN, -_TURN, -_TURN),
    upper_rad=(_TURN, _TURN, math.pi, _TURN, _TURN, _TURN),
    velocity_rad_s=(math.pi,) * 6,
    # The manufacturer gives no acceleration limit; 8 rad/s^2 is our assumption.
    acceleration_rad_s2=(8.0,) * 6,
)
