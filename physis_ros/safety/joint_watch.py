"""The joint states that safety relies on: how fresh they are, whether the robot rests, and whether
joints follow commands.

Messages may be permuted, carry extra joints, come from several publishers and lack velocities; each
joint has its own age. A position that is not finite counts as not received.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits, tolerances
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.joint_publishers import Disagreement, JointPublishers

# Positions this far apart in time give a velocity where none is measured.
_SLOPE_S = 0.02
# Measured values overshoot a commanded limit slightly in normal operation.
_POSITION_MARGIN = 0.05
_SPEED_MARGIN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRules:
    """How joint states are judged.

    `timeout_s`: a joint not seen for longer is missing. `rest_tolerance` [rad or m] and
    `rest_time_s`: the robot rests where no joint left a band of this half width for this long; a
    joint's own `rest` in the limits takes its place. A
    joint counts as beyond its measured limits after `bad_samples` of the last `sample_window`
    messages.
    """

    timeout_s: float = 0.1
    rest_tolerance: float = 0.002
    rest_time_s: float = 0.2
    bad_samples: int = 3
    sample_window: int = 10


class JointWatch:
    """Newest position of each joint. Times are seconds of a steady clock."""

    def __init__(self, limits: RobotLimits, rules: JointRules) -> None:
        self._limits = limits
        self._rules = rules
        self.rest_tolerance: Floats = np.array(
            tolerances(limits.rest, len(limits.names), rules.rest_tolerance)
        )
        """[joints]."""
        self._index = {name: index for index, name in enumerate(limits.names)}
        self._position = np.full(len(limits.names), math.nan)
        self._velocity = np.full(len(limits.names), math.nan)
        self._seen_s = [-math.inf] * len(limits.names)
        self._stamp_ns = [0] * len(limits.names)
        self._bad = ""
        self._beyond: deque[str] = deque(maxlen=rules.sample_window)
        # The middle of the band that the robot has not left since `_rested_since_s`.
        self._band = np.full(len(limits.names), math.nan)
        self._rested_since_s = math.inf
        self._slope_from: tuple[Floats, float] = (self._position.copy(), -math.inf)
        self._slope: Floats = np.zeros(len(limits.names))
        self._left_band = ""
        self._publishers = JointPublishers(limits.names)
        self.publisher_names: Mapping[bytes, str] = {}
        """The node of each publisher of joint states, by its id; for the text of a reason."""
        self.clock_fault = ""
        """Why simulated time does not serve: it keeps stamps from advancing. Part of a reason."""
        self.without_velocity = False
        """The newest message gave no velocity for one of our joints."""

    def see(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float],
        now_s: float,
        *,
        stamp_ns: int = 0,
        publisher: bytes | None = None,
    ) -> None:
        """Record what a message says of our joints. A stamp that does not advance marks a frozen or
        late message, which refreshes nothing; 0 is no stamp. `publisher`: its id, where known."""
        if len(positions) != len(names):
            self._bad = f"joint_states: {len(positions)} positions for {len(names)} names"
            return
        if publisher is not None:
            self._publishers.see(names, positions, publisher, now_s)
        with_velocity = len(velocities) == len(names)
        seen = False
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
            seen = True
        if seen:
            self.without_velocity = not with_velocity
            self._beyond.append(self.beyond_limits())
            self._update_rest(now_s)
            self._update_slope(now_s)

    def _update_slope(self, now_s: float) -> None:
        before, before_s = self._slope_from
        passed_s = now_s - before_s
        if passed_s < _SLOPE_S:
            return
        slope = (self._position - before) / passed_s
        self._slope = np.where(np.isfinite(slope), slope, 0.0)
        self._slope_from = self._position.copy(), now_s

    def _update_rest(self, now_s: float) -> None:
        apart = np.abs(self._position - self._band)
        if (apart <= self.rest_tolerance).all():
            return
        if np.isfinite(apart).all():
            joint = int(np.argmax(apart / self.rest_tolerance))
            self._left_band = f"{self._limits.names[joint]} moved by {apart[joint]:.4f}"
        self._band = self._position.copy()
        self._rested_since_s = now_s

    def moving(self, now_s: float) -> str:
        """One line for a robot that is not known to rest; empty where it rests."""
        missing = self.missing(now_s)
        if missing:
            return missing
        rested_s = now_s - self._rested_since_s
        if rested_s >= self._rules.rest_time_s:
            return ""
        return (
            f"joint_states: {self._left_band or 'seen only just now'}, at rest for "
            f"{max(0.0, rested_s):.2f} s of {self._rules.rest_time_s:g} s"
        )

    def still_s(self, now_s: float) -> float:
        """Seconds since a joint left the band of its `rest_tolerance`; negative infinity at
        first."""
        return now_s - self._rested_since_s

    def forget_stamps(self) -> None:
        """The clock jumped: accept any next stamp."""
        self._stamp_ns = [0] * len(self._stamp_ns)

    def disagreement(self, now_s: float) -> Disagreement | None:
        """A joint that two publishers report at different positions; None where all agree."""
        return self._publishers.disagreement(now_s)

    def missing(self, now_s: float) -> str:
        """One line that names two publishers that disagree, or the stalest joint; empty where every
        joint is fresh."""
        disagreement = self.disagreement(now_s)
        if disagreement is not None:
            return f"joint_states: {disagreement.line(self.publisher_names)}"
        oldest = min(range(len(self._seen_s)), key=self._seen_s.__getitem__)
        silent_s = now_s - self._seen_s[oldest]
        if silent_s <= self._rules.timeout_s:
            self._bad = ""
            return ""
        name = self._limits.names[oldest]
        causes = "; ".join(filter(None, (self._bad, self.clock_fault)))
        because = f" ({causes})" if causes else ""
        if silent_s == math.inf:
            return f"joint_states: {name}: never received{because}"
        return (
            f"joint_states: {name}: nothing for {silent_s:.3f} s, "
            f"limit {self._rules.timeout_s:.3f} s{because}"
        )

    @property
    def complete(self) -> bool:
        return bool(np.isfinite(self._position).all())

    @property
    def position(self) -> Floats:
        """[joints]; NaN where never received."""
        return self._position.copy()

    @property
    def velocity(self) -> Floats:
        """[joints]; the slope of the positions where none is measured."""
        return np.where(np.isfinite(self._velocity), self._velocity, self._slope)

    def out_of_limits(self) -> str:
        """One line where too many of the newest messages were beyond a limit; else empty."""
        bad = [line for line in self._beyond if line]
        if len(bad) < self._rules.bad_samples:
            return ""
        return f"{bad[-1]}, in {len(bad)} of the last {len(self._beyond)} messages"

    def beyond_limits(self) -> str:
        """One line for a joint whose newest sample is beyond its position or velocity limit."""
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

    def rest_near(self, commanded: Floats) -> Floats:
        """Where a resting robot is, [joints]: as commanded within a joint's own `rest` tolerance (a
        gripper that presses), else as measured."""
        own = np.array(
            [own is not None for own in self._limits.rest or (None,) * len(self._position)]
        )
        pressed = own & (np.abs(self._position - commanded) <= self.rest_tolerance)
        return np.where(pressed, commanded, self._position)

    def away_from(self, commanded: Floats, tolerance: Floats) -> str:
        """One line for the joint furthest from `commanded`, as a share of its `tolerance`, if
        beyond it; else empty. Both [joints]."""
        apart = np.abs(self._position - commanded)
        for index, wraps in enumerate(self._limits.wraps):
            if wraps:
                apart[index] = abs(math.remainder(float(apart[index]), math.tau))
        joint = int(np.argmax(apart / tolerance))
        if not apart[joint] > tolerance[joint]:
            return ""
        return (
            f"tracking: {self._limits.names[joint]}: {apart[joint]:.4f} from the commanded state, "
            f"limit {tolerance[joint]:.4f}"
        )
