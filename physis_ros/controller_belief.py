"""What the controller may be playing, from what was sent to it and what is known of its arrival.

A trajectory that was sent is on its way until it is acknowledged; then the controller has it, but
may still be slow to take it. Whoever decides something new must reckon with every motion that is
possible by then. A trajectory that is not acknowledged in time leaves doubt, and doubt ends only
at rest: nothing is sent until every possible motion has ended.

Times are seconds of the controller's clock. Pure: the caller brings them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from physis_ros.joint_motion import Floats, JointMotion

# Moments of arrival that are looked at, so far apart.
_ARRIVAL_STEP_S = 0.0125
# A controller that takes a trajectory so shortly before its first point leaves no way to it.
_LEAST_WAY_S = 1e-3
_TAKEN_LATE_SHARES = (0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """States that the controller may leave when a trajectory sent now arrives: `at_s` [S],
    positions and velocities [S, joints]."""

    at_s: Floats
    positions: Floats
    velocities: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Variant:
    """A motion that is possible besides the believed one, until `until_s`: by then it has become
    the believed one, or the controller has taken what was sent after it."""

    motion: JointMotion
    until_s: float


class ControllerBelief:
    """`late_s`: a trajectory is taken within so long after it was sent, or never."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.lost = 0
        self._motion: JointMotion | None = None
        self._flights: list[tuple[float, JointMotion]] = []
        self._variants: list[_Variant] = []
        self._doubt_until_s: float | None = None

    @property
    def motion(self) -> JointMotion | None:
        """The motion that is believed; None before the robot's place was known."""
        return self._motion

    @property
    def in_flight(self) -> bool:
        """A trajectory was sent and is not acknowledged yet."""
        return bool(self._flights)

    @property
    def doubtful(self) -> bool:
        """A trajectory was not acknowledged in time: either motion is possible."""
        return self._doubt_until_s is not None

    def doubt_is_over(self, now_s: float) -> bool:
        """Every possible motion has ended: the robot rests, at one of `ends`."""
        return self._doubt_until_s is not None and now_s > self._doubt_until_s

    @property
    def end_s(self) -> float:
        """When the last possible motion comes to rest."""
        return max((motion.end_s for motion, _ in self._possible()), default=-math.inf)

    def ends(self) -> list[Floats]:
        """Where the possible motions come to rest, [joints] each."""
        return [motion.positions[-1] for motion, _ in self._possible()]

    def copy(self) -> ControllerBelief:
        """The same belief, to be judged by while this one goes on. Motions are shared: nobody
        changes one."""
        other = ControllerBelief(self.late_s)
        other.lost = self.lost
        other._motion = self._motion
        other._flights = list(self._flights)
        other._variants = list(self._variants)
        other._doubt_until_s = self._doubt_until_s
        return other

    def stand(self, position: Floats, now_s: float) -> None:
        """The robot rests at `position`; whatever was believed is forgotten."""
        self.follow(JointMotion.at_rest(position, now_s))

    def follow(self, motion: JointMotion) -> None:
        """The controller plays `motion`; whatever else was believed is forgotten."""
        self._motion = motion
        self._flights.clear()
        self._variants.clear()
        self._doubt_until_s = None

    def sent(self, points: JointMotion, now_s: float) -> None:
        """A trajectory has left, its first point due more than `late_s` from now."""
        self._flights.append((now_s, points))

    def taken(self, now_s: float) -> None:
        """Everything that was sent has been acknowledged."""
        if self._motion is None:
            return
        for sent_s, points in self._flights:
            first_s = points.start_s
            before, latest_s = self._motion, sent_s + self.late_s
            self._variants = [
                _Variant(motion=one.motion, until_s=min(one.until_s, latest_s))
                for one in self._variants
            ]
            if self.late_s > 0.0:
                for share in _TAKEN_LATE_SHARES:
                    at_s = now_s + share * (latest_s - now_s)
                    if now_s < at_s < first_s - _LEAST_WAY_S:
                        motion = before.going_over(at_s, points)
                        self._variants.append(_Variant(motion=motion, until_s=first_s))
            at_s = min(now_s, first_s - _LEAST_WAY_S)
            self._motion = before.since(min(sent_s, at_s)).going_over(at_s, points)
        self._flights.clear()

    def look(self, now_s: float) -> None:
        """Forget what is no longer possible; begin to doubt what is overdue."""
        self._variants = [one for one in self._variants if now_s < one.until_s]
        if self._flights and now_s > self._flights[0][0] + self.late_s:
            self.lost += 1
            self._doubt_until_s = self.end_s
            self._variants += [
                _Variant(motion=motion, until_s=math.inf) for motion in self._in_flight_motions()
            ]
            self._flights.clear()

    def arrivals(self, now_s: float) -> Arrivals:
        """From where the controller may go over to what is sent now.

        Raises:
            RuntimeError: before the robot's place was known.
        """
        if self._motion is None:
            raise RuntimeError("nothing is believed yet")
        steps = math.ceil(self.late_s / _ARRIVAL_STEP_S)
        at_s = now_s + np.linspace(0.0, self.late_s, steps + 1)
        times, positions, velocities = [], [], []
        for motion, until_s in self._possible():
            by_then = at_s[at_s <= until_s]
            there, speed = motion.states(by_then)
            times.append(by_then)
            positions.append(there)
            velocities.append(speed)
        return Arrivals(
            at_s=np.concatenate(times),
            positions=np.concatenate(positions),
            velocities=np.concatenate(velocities),
        )

    def _possible(self) -> list[tuple[JointMotion, float]]:
        """Each possible motion, and until when it is."""
        if self._motion is None:
            return []
        return [
            (self._motion, math.inf),
            *((one.motion, one.until_s) for one in self._variants),
            *((motion, math.inf) for motion in self._in_flight_motions()),
        ]

    def _in_flight_motions(self) -> list[JointMotion]:
        """What is on its way may be taken at once, or as late as it can be."""
        if self._motion is None:
            return []
        bases, found = [self._motion], []
        for sent_s, points in self._flights:
            latest_s = min(sent_s + self.late_s, points.start_s - _LEAST_WAY_S)
            made = [
                base.since(min(base.end_s, sent_s)).going_over(at_s, points)
                for base in bases
                for at_s in (sent_s, 0.5 * (sent_s + latest_s), latest_s)
            ]
            bases = [*bases, *made]
            found += made
        return found
