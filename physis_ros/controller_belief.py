"""What the controller may be playing, from what was sent to it and what is known of its arrival.

A trajectory that was sent is on its way until it is acknowledged; then the controller has it, but
may still be slow to take it, and takes none but the newest: one that is replaced before leaves
whatever was in force before it, and the next may be taken from there. So the possible motions
branch with every trajectory. They are not followed one by one: for each trajectory the states are
kept from which the controller may have gone over to it, the outermost ones at each moment
(physis_ros.possible_states), which are as many however many motions lead there.

A trajectory that is not acknowledged in time leaves doubt, and doubt ends only at rest: nothing is
sent until every possible motion has ended.

Times are seconds of the controller's clock. Pure: the caller brings them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from physis_ros.joint_motion import Floats, JointMotion
from physis_ros.possible_motions import Arrivals, PossibleMotion, arrivals

# Moments of arrival that are looked at, so far apart.
_ARRIVAL_STEP_S = 0.016
# A controller that takes a trajectory so shortly before its first point leaves no way to it.
_LEAST_WAY_S = 1e-3


class ControllerBelief:
    """`late_s`: a trajectory is taken within so long after it was sent, or a later one is by then,
    or it is lost."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.lost = 0
        self._motion: JointMotion | None = None
        self._possible: list[PossibleMotion] = []
        self._flights: list[float] = []
        self._doubt_until_s: float | None = None
        self._seen: tuple[float, Arrivals] | None = None

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
        return max((one.points.end_s for one in self._possible), default=-math.inf)

    def ends(self) -> list[Floats]:
        """Where the possible motions come to rest, [joints] each."""
        return [one.points.positions[-1] for one in self._possible]

    def copy(self) -> ControllerBelief:
        """The same belief, to be judged by while this one goes on. Motions are shared: nobody
        changes one."""
        other = ControllerBelief(self.late_s)
        other.lost = self.lost
        other._motion = self._motion
        other._possible = list(self._possible)
        other._flights = list(self._flights)
        other._doubt_until_s = self._doubt_until_s
        other._seen = self._seen
        return other

    def stand(self, position: Floats, now_s: float) -> None:
        """The robot rests at `position`; whatever was believed is forgotten."""
        self.follow(JointMotion.at_rest(position, now_s))

    def follow(self, motion: JointMotion) -> None:
        """The controller plays `motion`; whatever else was believed is forgotten."""
        self._motion = motion
        self._possible = [PossibleMotion(points=motion, left=None, latest_s=-math.inf)]
        self._flights.clear()
        self._doubt_until_s = None
        self._seen = None

    def sent(self, points: JointMotion, now_s: float, arrivals: Arrivals | None = None) -> None:
        """A trajectory has left, its first point due more than `late_s` from now. `arrivals` are
        those of now, where they are known already.

        Raises:
            RuntimeError: before the robot's place was known.
        """
        left = arrivals or self.arrivals(now_s)
        if left.at_s[-1] > points.start_s - _LEAST_WAY_S:
            raise ValueError("the first point may be due before the trajectory is taken")
        self._possible.append(
            PossibleMotion(points=points, left=left, latest_s=now_s + self.late_s)
        )
        self._flights.append(now_s)
        self._seen = None

    def taken(self, now_s: float) -> None:
        """Everything that was sent has been acknowledged."""
        if self._motion is None or not self._flights:
            return
        for sent_s, one in zip(self._flights, self._possible[-len(self._flights) :], strict=True):
            at_s = min(now_s, one.points.start_s - _LEAST_WAY_S)
            self._motion = self._motion.since(min(sent_s, at_s)).going_over(at_s, one.points)
        until_s = math.inf
        for index in reversed(range(len(self._possible))):
            one = self._possible[index]
            self._possible[index] = replace(one, until_s=min(one.until_s, until_s))
            until_s = min(until_s, one.latest_s)
        self._flights.clear()
        self._seen = None

    def look(self, now_s: float) -> None:
        """Forget what is no longer possible; begin to doubt what is overdue."""
        self._possible = [one for one in self._possible if now_s < one.until_s]
        if self._flights and now_s > self._flights[0] + self.late_s:
            self.lost += 1
            self._doubt_until_s = self.end_s
            self._flights.clear()
            self._seen = None

    def arrivals(self, now_s: float) -> Arrivals:
        """From where the controller may go over to what is sent now.

        Raises:
            RuntimeError: before the robot's place was known.
        """
        if not self._possible:
            raise RuntimeError("nothing is believed yet")
        if self._seen is None or self._seen[0] != now_s:
            self._seen = now_s, self._arrivals(now_s)
        return self._seen[1]

    def _arrivals(self, now_s: float) -> Arrivals:
        return arrivals(self._possible, self._moments(now_s))

    def _moments(self, now_s: float) -> Floats:
        """Moments of arrival that are looked at, [T]: evenly apart, and the last one of each motion
        that ends meanwhile, where most of what it may lead to parts from the rest. Half a step
        stands between any two, so that their number is bounded however many motions there are.
        """
        steps = math.ceil(self.late_s / _ARRIVAL_STEP_S)
        even: Floats = now_s + np.linspace(0.0, self.late_s, steps + 1, dtype=np.float64)
        apart_s = 0.5 * _ARRIVAL_STEP_S
        last_s: list[float] = []
        for until_s in sorted({one.until_s for one in self._possible}):
            if even[0] < until_s < even[-1] and (not last_s or until_s - last_s[-1] >= apart_s):
                last_s.append(until_s)
        if not last_s:
            return even
        between = even[1:-1]
        clear = np.abs(between[:, None] - last_s).min(axis=1) >= apart_s
        return np.sort(np.concatenate([even[[0, -1]], between[clear], last_s]))
