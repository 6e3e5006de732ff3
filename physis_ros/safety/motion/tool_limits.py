"""Limits of the tool: a box that its origin must not leave, and a speed.

Pure. A motion is checked every `_STEP_S`, on the nominal path: a message that the controller takes
late leads elsewhere for the first moment.
"""

from __future__ import annotations

import math

import numpy as np

from physis_ros.robot.joint_motion import Floats, JointMotion
from physis_ros.robot.kinematic_chain import KinematicChain
from physis_ros.safety.motion.checks import Violation

_STEP_S = 0.01
# Rounding is not a violation.
_TOLERANCE_M = 1e-4
_SPEED_TOLERANCE = 1e-3
_AXES = "xyz"


class ToolLimits:
    """Args:
    chain: gives the tool's position in its base link.
    lower, upper: corners of the box [3] in m; infinite where open.
    speed_m_s: of the tool's origin; infinite for no limit.
    """

    def __init__(
        self, chain: KinematicChain, *, lower: Floats, upper: Floats, speed_m_s: float
    ) -> None:
        self._chain = chain
        self._lower = lower
        self._upper = upper
        self._speed_m_s = speed_m_s

    def check(self, motion: JointMotion) -> Violation | None:
        """The first limit that the motion passes; None where it passes none. A tool that begins
        outside the box may move back, but not further out."""
        count = max(2, math.ceil((motion.end_s - motion.start_s) / _STEP_S) + 1)
        at_s: Floats = np.linspace(motion.start_s, motion.end_s, count, dtype=np.float64)
        place, speed = self._chain.tool(*motion.states(at_s))
        lower = np.minimum(self._lower, place[0]) - _TOLERANCE_M
        upper = np.maximum(self._upper, place[0]) + _TOLERANCE_M
        for outside, box in ((place < lower, self._lower), (place > upper, self._upper)):
            if outside.any():
                sample, axis = np.argwhere(outside)[0]
                return Violation(
                    check="workspace",
                    detail=f"tool {_AXES[axis]} {place[sample, axis]:.3f} m beyond "
                    f"{box[axis]:.3f} m, {at_s[sample] - at_s[0]:.2f} s ahead",
                )
        sample = int(np.argmax(speed))
        if not speed[sample] > self._speed_m_s * (1.0 + _SPEED_TOLERANCE):
            return None
        return Violation(
            check="tool speed",
            detail=f"{speed[sample]:.3f} m/s above {self._speed_m_s:.3f} m/s, "
            f"{at_s[sample] - at_s[0]:.2f} s ahead",
        )
