"""Limits of an imagined arm of three joints, for tests: the last joint is continuous."""

import math

from physis_ros.joint_limits import RobotLimits

NAMES = ("lift", "bend", "spin")

LIMITS = RobotLimits(
    names=NAMES,
    lower=(-1.5, -2.0, -math.inf),
    upper=(1.5, 2.0, math.inf),
    velocity=(2.0, 1.0, 3.0),
    acceleration=(8.0, 4.0, 10.0),
    jump=(0.4, 0.4, 0.4),
    wraps=(False, False, True),
)
