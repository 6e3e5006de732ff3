"""The robot's state that the plan starts from: the commanded state, else the measured one.

Pure; times are steady seconds, arrays [joints] in the order of `names`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from physis_ros.robot.joint_motion import Floats

# Without a safety node there is no commanded state; the measured one is used after this time.
_COMMANDED_WAIT_S = 1.0
# The plan and the commanded state differ by the latency of a message. If they differ by more
# several times in a row, the robot follows another motion.
_APART_RAD = 0.02
_APART_S = 0.08
_APART_TIMES = 3
# Where both rest, as after the arm was moved by hand, no latency makes them differ.
_APART_AT_REST_RAD = 1e-3


class RobotState:
    def __init__(self, names: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._measured = np.full(len(names), np.nan)
        self._since_s = 0.0
        self._commanded_heard = False
        self._apart = 0

    def begin(self, now_s: float) -> None:
        """Wait for the commanded state from now on."""
        self._since_s = now_s

    def measured(self, names: Sequence[str], positions: Sequence[float]) -> None:
        """Record the measured positions of our joints, in any order."""
        for name, position in zip(names, positions):
            index = self._index.get(name)
            if index is not None:
                self._measured[index] = position

    def commanded(self) -> None:
        """A commanded state was received; measured positions are ignored from now on."""
        self._commanded_heard = True

    def measured_start(self, now_s: float) -> Floats | None:
        """The measured position if no commanded state has come in time; else None."""
        waited = now_s - self._since_s > _COMMANDED_WAIT_S
        if self._commanded_heard or not waited or not np.isfinite(self._measured).all():
            return None
        return self._measured.copy()

    def rebased(self) -> None:
        """The plan begins at the commanded state."""
        self._apart = 0

    def differs_from_plan(
        self,
        planned: Floats,
        planned_velocity: Floats,
        commanded: Floats,
        commanded_velocity: Floats,
    ) -> bool:
        """Compare both at one instant; True once they differed several times in a row, or at once
        where both rest: a message that is late says nothing wrong then."""
        apart = np.abs(planned - commanded)
        if not planned_velocity.any() and not commanded_velocity.any():
            self._apart = 0
            return bool((apart > _APART_AT_REST_RAD).any())
        allowed = _APART_RAD + _APART_S * np.maximum(
            np.abs(commanded_velocity), np.abs(planned_velocity)
        )
        self._apart = 0 if bool((apart <= allowed).all()) else self._apart + 1
        return self._apart >= _APART_TIMES
