"""The joint states that safety relies on: how fresh they are, and whether joints follow commands.

Messages may be permuted, carry extra joints, come from several publishers and lack velocities; each
joint has its own age. A position that is not finite counts as not received.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats

# Measured values overshoot a commanded limit slightly in normal operation.
_POSITION_MARGIN = 0.05
_SPEED_MARGIN = 1.5


class JointWatch:
    """Newest position of each joint. Times are seconds of a steady clock."""

    def __init__(self, limits: RobotLimits, *, timeout_s: float) -> None:
        self._limits = limits
        self._timeout_s = timeout_s
        self._index = {name: index for index, name in enumerate(limits.names)}
        self._position = np.full(len(limits.names), math.nan)
        self._velocity = np.full(len(limits.names), math.nan)
        self._seen_s = [-math.inf] * len(limits.names)
        self._stamp_ns = [0] * len(limits.names)
        self._bad = ""

    def see(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float],
        now_s: float,
        *,
        stamp_ns: int = 0,
    ) -> None:
        """Record what a message says of our joints. A stamp that does not advance marks a frozen or
        late message, which refreshes nothing; 0 is no stamp."""
        if len(positions) != len(names):
            self._bad = f"joint_states: {len(positions)} positions for {len(names)} names"
            return
        with_velocity = len(velocities) == len(names)
        for place, name in enumerate(names):
            index = self._index.get(name)
            if index is None:
                continue
            if stamp_ns and stamp_ns <= self._stamp_ns[index]:
                self._bad = f"joint_states: {name}: the stamp does not advance"
                continue
            position = positions[place]
            if not math.isfinite(position):
                self._bad = f"joint_states: {name}: position {position}"
                continue
            if self._limits.wraps[index] and math.isfinite(self._position[index]):
                position = self._limits.unwrapped(index, position, float(self._position[index]))
            self._position[index] = position
            velocity = velocities[place] if with_velocity else math.nan
            self._velocity[index] = velocity if math.isfinite(velocity) else math.nan
            self._seen_s[index] = now_s
            self._stamp_ns[index] = stamp_ns

    def forget_stamps(self) -> None:
        """The clock jumped: accept any next stamp."""
        self._stamp_ns = [0] * len(self._stamp_ns)

    def missing(self, now_s: float) -> str:
        """One line that names the stalest joint; empty where every joint is fresh."""
        oldest = min(range(len(self._seen_s)), key=self._seen_s.__getitem__)
        silent_s = now_s - self._seen_s[oldest]
        if silent_s <= self._timeout_s:
            self._bad = ""
            return ""
        name = self._limits.names[oldest]
        because = f" ({self._bad})" if self._bad else ""
        if silent_s == math.inf:
            return f"joint_states: {name}: never received{because}"
        return (
            f"joint_states: {name}: nothing for {silent_s:.3f} s, "
            f"limit {self._timeout_s:.3f} s{because}"
        )

    @property
    def complete(self) -> bool:
        return bool(np.isfinite(self._position).all())

    @property
    def position(self) -> Floats:
        """[joints]; NaN where never received."""
        return self._position.copy()

    def out_of_limits(self) -> str:
        """One line for a joint outside its position or velocity limit; empty if none is."""
        for index, name in enumerate(self._limits.names):
            position, speed = float(self._position[index]), abs(float(self._velocity[index]))
            lower, upper = self._limits.lower[index], self._limits.upper[index]
            if position < lower - _POSITION_MARGIN or position > upper + _POSITION_MARGIN:
                limit = lower if position < lower else upper
                return f"measured position: {name}: {position:.4f} beyond {limit:.4f}"
            if speed > _SPEED_MARGIN * self._limits.velocity[index]:
                return (
                    f"measured velocity: {name}: {speed:.4f} above "
                    f"{_SPEED_MARGIN:g} x {self._limits.velocity[index]:.4f}"
                )
        return ""

    def away_from(self, commanded: Floats, tolerance: float) -> str:
        """One line for the joint furthest from `commanded`, if beyond `tolerance`; else empty."""
        apart = np.abs(self._position - commanded)
        for index, wraps in enumerate(self._limits.wraps):
            if wraps:
                apart[index] = abs(math.remainder(float(apart[index]), math.tau))
        joint = int(np.argmax(apart))
        if not apart[joint] > tolerance:
            return ""
        return (
            f"tracking: {self._limits.names[joint]}: {apart[joint]:.4f} from the commanded state, "
            f"limit {tolerance:.4f}"
        )
