"""The motion that a controller played, tick by tick, against the limits. Pure.

Nothing is smoothed over: the state of every tick counts, and between two ticks the change of
velocity and of position, so that no step hides there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.point_interpolation import MotionState

TOLERANCE = 0.02
"""Relative. A late message that is joined without care passes a limit by 200 to 1,900 %."""
_POSITION_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """Largest share of each limit that was used. `violations`: ticks above 1 + TOLERANCE of a
    velocity or acceleration limit, outside of a position limit, or with a step of position;
    `first_s`: the first of them."""

    velocity: float
    acceleration: float
    violations: int
    first_s: float | None = None


class PlayedMotion:
    def __init__(self, limits: RobotLimits, tick_s: float) -> None:
        self._limits = limits
        self._tick_s = tick_s
        self._parts: list[list[tuple[float, MotionState]]] = [[]]

    def add(self, now_s: float, state: MotionState) -> None:
        self._parts[-1].append((now_s, state))

    def forget(self) -> None:
        """The next tick does not continue the last one: the controller was started anew."""
        self._parts.append([])

    def moving_until_s(self, after_s: float) -> float | None:
        """When the last tick after `after_s` moved; None where none did."""
        for part in reversed(self._parts):
            for at_s, state in reversed(part):
                if at_s < after_s:
                    return None
                if state.velocity is not None and bool(state.velocity.any()):
                    return at_s
        return None

    def limit_use(self) -> LimitUse:
        found = [self._use_of(part) for part in self._parts if len(part) > 1]
        firsts = [one.first_s for one in found if one.first_s is not None]
        return LimitUse(
            velocity=max((one.velocity for one in found), default=0.0),
            acceleration=max((one.acceleration for one in found), default=0.0),
            violations=sum(one.violations for one in found),
            first_s=min(firsts, default=None),
        )

    def _use_of(self, part: list[tuple[float, MotionState]]) -> LimitUse:
        limits, tick_s = self._limits, self._tick_s
        x = np.array([state.position for _, state in part])
        v = np.array([_given(state.velocity, state) for _, state in part])
        a = np.array([_given(state.acceleration, state) for _, state in part])
        most = np.array(limits.acceleration)
        speed = np.abs(v) / np.array(limits.velocity)
        push = np.abs(a) / most
        # Between ticks: the change of velocity, and the step beyond the motion's own velocity.
        push[1:] = np.maximum(push[1:], np.abs(np.diff(v, axis=0)) / tick_s / most)
        own = 0.5 * (v[1:] + v[:-1]) * tick_s
        step = np.zeros_like(x)
        step[1:] = np.abs(np.diff(x, axis=0) - own) / (0.2 * tick_s**2 * most)
        outside = (x < np.array(limits.lower) - _POSITION_TOLERANCE) | (
            x > np.array(limits.upper) + _POSITION_TOLERANCE
        )
        bad = (speed > 1.0 + TOLERANCE) | (push > 1.0 + TOLERANCE) | (step > 1.0) | outside
        bad |= ~np.isfinite(x)
        rows: Floats = bad.any(axis=1)
        return LimitUse(
            velocity=float(speed.max()),
            acceleration=float(push.max()),
            violations=int(rows.sum()),
            first_s=part[int(np.argmax(rows))][0] if rows.any() else None,
        )


def _given(values: Floats | None, state: MotionState) -> Floats:
    return np.zeros_like(state.position) if values is None else values
