"""What the controller may be playing, from what was sent to it and what is known of its arrival.

A trajectory that was sent is on its way until it is acknowledged; then the controller has it, but
may still be slow to take it, and takes none but the newest: one that is replaced before leaves
whatever was in force before it, and the next may be taken from there. So the possible motions
branch with every trajectory. They are not followed one by one: for each trajectory the states are
kept from which the controller may have gone over to it, the outermost ones at each moment
(physis_ros.safety.possible_motions), which are as many however many motions lead there.

Most moments at which a message may arrive lie on a grid of the clock, so that what is possible then
can be worked out before a command is there (`look_ahead`); the command waits for the rest alone.

A trajectory that is not acknowledged in time leaves doubt, and doubt ends only at rest: nothing is
sent until every possible motion has ended.

Times are seconds of the controller's clock. Pure: the caller brings them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from physis_ros.robot.joint_motion import Floats, JointMotion
from physis_ros.safety.possible_motions import Arrivals, PossibleMotion, are_among, arrivals

# Moments of arrival that are looked at lie so far apart; where a motion ends, it is its last moment
# instead of the nearest of these. One in each half a step at most.
_ARRIVAL_STEP_S = 0.016
_HALF_S = 0.5 * _ARRIVAL_STEP_S
# Nearer than this to the first or the last moment none of the grid adds anything.
_ENDS_APART_S = 0.25 * _ARRIVAL_STEP_S
# How much later than now a command may come and find everything worked out.
_AHEAD_S = 0.05
# A controller that takes a trajectory so shortly before its first point leaves no way to it.
_LEAST_WAY_S = 1e-3


class ControllerEstimate:
    """`late_s`: a trajectory is taken within so long after it was sent, or a later one is by then,
    or it is lost."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.lost = 0
        self._motion: JointMotion | None = None
        self._possible: list[PossibleMotion] = []
        self._flights: list[float] = []
        self._uncertain_until_s: float | None = None
        self._seen: tuple[float, Arrivals] | None = None
        self._ahead: Arrivals | None = None

    @property
    def motion(self) -> JointMotion | None:
        """The nominal motion (each trajectory taken when acknowledged); None at first."""
        return self._motion

    @property
    def in_flight(self) -> bool:
        """A trajectory was sent and is not acknowledged yet."""
        return bool(self._flights)

    @property
    def uncertain(self) -> bool:
        """A trajectory was not acknowledged in time: either motion is possible."""
        return self._uncertain_until_s is not None

    def settled(self, now_s: float) -> bool:
        """Every possible motion has ended: the robot rests, at one of `ends`."""
        return self._uncertain_until_s is not None and now_s > self._uncertain_until_s

    @property
    def end_s(self) -> float:
        """When the last possible motion comes to rest."""
        return max((one.points.end_s for one in self._possible), default=-math.inf)

    def ends(self) -> list[Floats]:
        """Where the possible motions come to rest, [joints] each."""
        return [one.points.positions[-1] for one in self._possible]

    def copy(self) -> ControllerEstimate:
        """The same estimate, to be judged by while this one goes on. Motions are shared: nobody
        changes one."""
        other = ControllerEstimate(self.late_s)
        other.lost = self.lost
        other._motion = self._motion
        other._possible = list(self._possible)
        other._flights = list(self._flights)
        other._uncertain_until_s = self._uncertain_until_s
        other._seen = self._seen
        other._ahead = self._ahead
        return other

    def rest_at(self, position: Floats, now_s: float) -> None:
        """The robot rests at `position`; everything else is forgotten."""
        self.assume(JointMotion.at_rest(position, now_s))

    def assume(self, motion: JointMotion) -> None:
        """The controller plays `motion`; everything else is forgotten."""
        self._motion = motion
        self._possible = [PossibleMotion(points=motion, left=None, latest_s=-math.inf)]
        self._flights.clear()
        self._uncertain_until_s = None
        self._forget_arrivals()

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
        self._forget_arrivals()

    def acknowledged(self, now_s: float) -> None:
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
        self._forget_arrivals()

    def update(self, now_s: float) -> None:
        """Forget what is no longer possible; begin to doubt what is overdue."""
        self._possible = [one for one in self._possible if now_s < one.until_s]
        if self._flights and now_s > self._flights[0] + self.late_s:
            self.lost += 1
            self._uncertain_until_s = self.end_s
            self._flights.clear()
            self._forget_arrivals()

    def look_ahead(self, now_s: float) -> Arrivals | None:
        """What `arrivals` will need of the moments from `now_s` on, where nothing is sent or
        acknowledged meanwhile: for `keep`. Takes as long as a judgement; None: nothing to do."""
        if not self._possible or self.late_s <= 0.0:
            return None
        moments = self._grid(now_s, now_s + self.late_s + _AHEAD_S)
        return arrivals(self._possible, moments) if moments.size else None

    def keep(self, ahead: Arrivals) -> None:
        """Take what `look_ahead` found. It holds until the next trajectory is sent or
        acknowledged."""
        self._ahead = ahead

    def _forget_arrivals(self) -> None:
        self._seen = self._ahead = None

    def arrivals(self, now_s: float) -> Arrivals:
        """From where the controller may go over to what is sent now.

        Raises:
            RuntimeError: before the robot's place was known.
        """
        if not self._possible:
            raise RuntimeError("nothing is known of the controller yet")
        if self._seen is None or self._seen[0] != now_s:
            self._seen = now_s, self._arrivals(now_s)
        return self._seen[1]

    def _arrivals(self, now_s: float) -> Arrivals:
        moments = self._moments(now_s)
        if self._ahead is None:
            return arrivals(self._possible, moments)
        known = are_among(moments, self._ahead.at_s)
        return Arrivals.together(
            [arrivals(self._possible, moments[~known]), self._ahead.at(moments[known])]
        )

    def _moments(self, now_s: float) -> Floats:
        """Moments of arrival that are looked at, [T], increasing: now, the latest, and between."""
        if self.late_s <= 0.0:
            return np.array([now_s])
        latest_s = now_s + self.late_s
        between = self._grid(now_s, latest_s)
        return np.concatenate([[now_s], between, [latest_s]])

    def _grid(self, from_s: float, to_s: float) -> Floats:
        """Moments between two: of the grid, and the last one of each motion that ends meanwhile,
        where most of what it may lead to parts from the rest. There is one in each half a step at
        most, so that their number is bounded however many motions there are; and none depends on
        `from_s`."""
        ends: dict[int, float] = {}
        for one in self._possible:
            if from_s < one.until_s < to_s:
                half = math.floor(one.until_s / _HALF_S)
                ends[half] = max(ends.get(half, -math.inf), one.until_s)
        first = math.ceil((from_s + _ENDS_APART_S) / _ARRIVAL_STEP_S)
        last = math.floor((to_s - _ENDS_APART_S) / _ARRIVAL_STEP_S)
        even = [
            number * _ARRIVAL_STEP_S
            for number in range(first, last + 1)
            if 2 * number not in ends and 2 * number - 1 not in ends
        ]
        return np.array(sorted([*even, *ends.values()]))
