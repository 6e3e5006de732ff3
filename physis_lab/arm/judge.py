"""Checks every tick of a motion against the limits, without intervening. Pure."""

from __future__ import annotations

from collections import deque
from enum import IntFlag

import numpy as np

from physis_core.types import Array
from physis_lab.arm.limits import ArmLimits


class Passed(IntFlag):
    """The limits that a tick exceeded; 0 for none. Recorded as an integer."""

    NONE = 0
    COMMAND_POSITION = 1
    COMMAND_VELOCITY = 2
    COMMAND_ACCELERATION = 4
    MEASURED_POSITION = 8
    MEASURED_VELOCITY = 16
    COMMAND_NOT_FINITE = 32


class MotionJudge:
    """Compares commanded and measured motion with the limits, tick by tick.

    Commanded velocity is the difference of successive commanded positions. Commanded acceleration
    is the change of that velocity over `window_ticks`, because the difference of a single tick
    contains sampling effects. Tolerances are relative.
    """

    def __init__(
        self,
        limits: ArmLimits,
        tick_s: float,
        *,
        window_ticks: int = 3,
        tolerance: float = 0.02,
    ) -> None:
        self._lower = limits.lower - 1e-6
        self._upper = limits.upper + 1e-6
        self._velocity = limits.velocity * (1.0 + tolerance)
        self._acceleration = limits.acceleration * (1.0 + tolerance)
        self._tick_s = tick_s
        self._last_position: Array | None = None
        self._velocities: deque[Array] = deque(maxlen=window_ticks + 1)

    def forget(self) -> None:
        """Start over: the next tick does not continue the last one (the simulation was paused)."""
        self._last_position = None
        self._velocities.clear()

    def look(
        self, command_position: Array, measured_position: Array, measured_velocity: Array
    ) -> Passed:
        """All arrays [joints], rad and rad/s."""
        passed = Passed.NONE
        if _outside(measured_position, self._lower, self._upper):
            passed |= Passed.MEASURED_POSITION
        if bool(np.any(np.abs(measured_velocity) > self._velocity)):
            passed |= Passed.MEASURED_VELOCITY
        if not np.isfinite(command_position).all():
            return passed | Passed.COMMAND_NOT_FINITE
        if _outside(command_position, self._lower, self._upper):
            passed |= Passed.COMMAND_POSITION
        if self._last_position is not None:
            velocity = (command_position - self._last_position) / self._tick_s
            self._velocities.append(velocity)
            if bool(np.any(np.abs(velocity) > self._velocity)):
                passed |= Passed.COMMAND_VELOCITY
            if len(self._velocities) > 1:
                span_s = self._tick_s * (len(self._velocities) - 1)
                change = (velocity - self._velocities[0]) / span_s
                full = len(self._velocities) == self._velocities.maxlen
                if full and bool(np.any(np.abs(change) > self._acceleration)):
                    passed |= Passed.COMMAND_ACCELERATION
        self._last_position = command_position.copy()
        return passed


def _outside(value: Array, lower: Array, upper: Array) -> bool:
    return bool(np.any((value < lower) | (value > upper)))
