"""Points for a forward position controller, which applies each at once: no step may be large.

Pure: the commanded and the measured position in, the point of this tick out.
"""

from __future__ import annotations

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats

# After a pause of the loop, the step is that of this time at most.
_LONGEST_STEP_S = 0.02


class PositionOutput:
    """Begins at the measured position and goes to the commanded one within the velocity limits."""

    def __init__(self, limits: RobotLimits) -> None:
        self._velocity = np.array(limits.velocity)
        self._last: tuple[Floats, float] | None = None

    def pause(self) -> None:
        """No point goes out; the next one begins at the measured position."""
        self._last = None

    def point(self, commanded: Floats, measured: Floats, now_s: float) -> Floats:
        """The point of this tick [joints]. `now_s`: a steady clock, in seconds."""
        if self._last is None:
            self._last = measured.copy(), now_s
            return measured.copy()
        last, last_s = self._last
        most = self._velocity * min(now_s - last_s, _LONGEST_STEP_S)
        point = last + np.clip(commanded - last, -most, most)
        self._last = point, now_s
        return np.asarray(point)
