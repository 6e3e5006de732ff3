"""Estimates which motions the trajectory controller may be playing, from what was sent to it.

A trajectory is in flight until the controller's side acknowledges it. After that the controller
may still take it late, and it takes only the newest: a trajectory that is replaced first is never
played, and the controller goes over to the next one from whatever it played before. So the possible
motions branch with every trajectory. They are not followed one by one. For each trajectory the
estimate keeps the states from which the controller may have gone over to it, reduced to the
outermost ones at each moment (`possible_motions`); their number stays bounded.

Most moments at which a message may arrive lie on a grid of the clock. So the states at those
moments can be computed before a command arrives (`look_ahead`), and only the rest adds to the
command's latency.

After a trajectory that was not acknowledged in time the estimate is uncertain until every possible
motion has ended at rest, or until the measured joints contradict all but one (`compare`). Only
brakes are sent before that.

Times are seconds of the controller's clock, given by the caller. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from physis_ros.robot.joint_motion import Floats, JointMotion
from physis_ros.safety.motion.possible_motions import (
    Arrivals,
    Paths,
    PossibleMotion,
    are_among,
    arrivals,
)

# Distance of the moments of arrival that are examined. Where a motion ends, its last moment takes
# the place of the nearest of these. At most one lies in each half step.
_ARRIVAL_STEP_S = 0.016
_HALF_S = 0.5 * _ARRIVAL_STEP_S
# A grid moment closer than this to the first or the last moment adds nothing.
_ENDS_APART_S = 0.25 * _ARRIVAL_STEP_S
# `look_ahead` covers a command that arrives up to this much later.
_AHEAD_S = 0.05
# The controller takes a trajectory at least this long before its first point.
_LEAST_WAY_S = 1e-3
# The measured joints contradict a motion that they leave by more than this, seen up to `_LAG_S`
# late, for `_CONTRADICTED_S` without a break [rad or m].
_CONTRADICTION = 0.03
_LAG_S = 0.15
_CONTRADICTED_S = 0.1
# So much further from every motion than at first, a robot that stands still does not follow.
_STANDS_BESIDE = 0.008
# All possible motions are looked at so often, because that takes half a millisecond.
_LOOK_STILL_S = 0.02


class ControllerEstimate:
    """`late_s`: within this time after it was sent, the controller takes a trajectory or a later
    one, or it is lost."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.lost = 0
        self._motion: JointMotion | None = None
        self._possible: list[PossibleMotion] = []
        self._flights: list[float] = []
        self._uncertain_until_s: float | None = None
        self._seen: tuple[float, Arrivals] | None = None
        self._ahead: Arrivals | None = None
        self._contradicted_since_s: dict[int, float] = {}
        # The robot stands still beside every other motion, since it may hold this one.
        self._held: PossibleMotion | None = None
        # How far beside all motions it stood at first, and since when it is too far.
        self._still: float | None = None
        self._beside_since_s: float | None = None
        self._look_s = -math.inf

    @property
    def motion(self) -> JointMotion | None:
        """The nominal motion: each trajectory taken when it was acknowledged. None at first."""
        return self._motion

    @property
    def in_flight(self) -> bool:
        """A trajectory was sent and is not acknowledged yet."""
        return bool(self._flights)

    @property
    def uncertain(self) -> bool:
        """A trajectory was not acknowledged in time: the controller may or may not play it."""
        return self._uncertain_until_s is not None

    @property
    def not_followed(self) -> bool:
        """The robot stands still where no possible motion is (`compare_rest`)."""
        return self._held is not None

    def settled(self, now_s: float) -> bool:
        """It was uncertain, and every possible motion has ended."""
        return self._uncertain_until_s is not None and now_s > self._uncertain_until_s

    @property
    def end_s(self) -> float:
        """When the last possible motion comes to rest."""
        return max((one.points.end_s for one in self._possible), default=-math.inf)

    def copy(self) -> ControllerEstimate:
        """A copy to judge against while this one goes on. Motions are shared; none is ever
        changed."""
        other = ControllerEstimate(self.late_s)
        other.lost = self.lost
        other._motion = self._motion
        other._possible = list(self._possible)
        other._flights = list(self._flights)
        other._uncertain_until_s = self._uncertain_until_s
        other._held = self._held
        other._seen = self._seen
        other._ahead = self._ahead
        return other

    def rest_at(self, position: Floats, now_s: float, *, or_at: Floats | None = None) -> None:
        """The robot rests at `position`; everything else is forgotten. The controller may hold
        `or_at` instead, if it is given."""
        self.assume(JointMotion.at_rest(position, now_s))
        if or_at is not None:
            held = PossibleMotion(
                points=JointMotion.at_rest(or_at, now_s), paths=None, latest_s=-math.inf
            )
            # In order: whichever is left by a trajectory, both are.
            self._possible = [held, replace(self._possible[0], latest_s=math.inf)]

    def assume(self, motion: JointMotion) -> None:
        """The controller plays `motion`; everything else is forgotten."""
        self._motion = motion
        self._possible = [PossibleMotion(points=motion, paths=None, latest_s=-math.inf)]
        self._flights.clear()
        self._uncertain_until_s = None
        self._held = self._still = self._beside_since_s = None
        self._contradicted_since_s.clear()
        self._forget_arrivals()

    def sent(self, points: JointMotion, now_s: float, arrivals: Arrivals | None = None) -> None:
        """A trajectory was sent; its first point is due more than `late_s` from now. `arrivals`:
        those of now, if they are already known.

        Raises:
            RuntimeError: before `rest_at` or `assume`.
        """
        left = arrivals or self.arrivals(now_s)
        if left.at_s[-1] > points.start_s - _LEAST_WAY_S:
            raise ValueError("the first point may be due before the trajectory is taken")
        self._possible.append(
            PossibleMotion(
                points=points, paths=Paths.to(points, left), latest_s=now_s + self.late_s
            )
        )
        self._flights.append(now_s)
        self._forget_arrivals()

    def acknowledged(self, now_s: float) -> None:
        """Everything sent so far has been acknowledged."""
        if self._motion is None or not self._flights:
            return
        for sent_s, one in zip(self._flights, self._possible[-len(self._flights) :], strict=True):
            at_s = min(now_s, one.points.start_s - _LEAST_WAY_S)
            self._motion = self._motion.since(min(sent_s, at_s)).going_over(at_s, one.points)
        until_s = math.inf
        for index in reversed(range(len(self._possible))):
            one = self._possible[index]
            if one is self._held:
                # What does not follow may have lost this one, too.
                continue
            self._possible[index] = replace(one, until_s=min(one.until_s, until_s))
            until_s = min(until_s, one.latest_s)
        self._flights.clear()
        if self._uncertain_until_s is not None:
            # A brake: it is the only motion left, once it has been taken.
            self._uncertain_until_s = self._possible[-1].points.end_s
        self._forget_arrivals()

    def update(self, now_s: float) -> None:
        """Drop motions that are no longer possible; become uncertain where one is overdue."""
        self._possible = [one for one in self._possible if now_s < one.until_s]
        if self._flights and now_s > self._flights[0] + self.late_s:
            self.lost += 1
            self._uncertain_until_s = self.end_s
            self._flights.clear()
            self._forget_arrivals()

    def compare(self, measured: Floats, now_s: float) -> bool:
        """While uncertain: drop the motions that the measured joints [joints] contradict, if they
        fit another one. True where any was dropped; certain again where one is left.

        A motion is compared from `_LAG_S` after its first point on, because it is exact from
        there, however the controller came to it.
        """
        if self._uncertain_until_s is None or self._held is not None:
            return False
        seen_s: Floats = np.linspace(now_s - _LAG_S, now_s, 6, dtype=np.float64)
        since = self._contradicted_since_s
        fitting: list[PossibleMotion] = []
        dropped = False
        for one in self._possible:
            if one.points.start_s > seen_s[0]:
                since.pop(id(one), None)
                continue
            positions, _ = one.points.states(seen_s)
            if np.abs(positions - measured).max(axis=1).min() <= _CONTRADICTION:
                since.pop(id(one), None)
                fitting.append(one)
            elif now_s - since.setdefault(id(one), now_s) >= _CONTRADICTED_S:
                dropped = True
        if not dropped or not fitting:
            return False
        self._possible = [
            one for one in self._possible if now_s - since.get(id(one), now_s) < _CONTRADICTED_S
        ]
        since.clear()
        self._motion = fitting[-1].points
        self._uncertain_until_s = self.end_s
        if len(self._possible) == 1:
            self._possible = [PossibleMotion(points=self._motion, paths=None, latest_s=-math.inf)]
            self._uncertain_until_s = None
        self._forget_arrivals()
        return True

    def compare_rest(self, measured: Floats, now_s: float, *, slack: float | Floats = 0.0) -> bool:
        """Compare the possible motions with a robot that stands still at `measured` [joints].
        `slack` [joints]: so far beside a motion a joint may stand (a gripper that holds something).

        Where all of them have gone away from it for `_CONTRADICTED_S`, one more is possible: the
        controller holds `measured`, because it was started anew and lost what was sent. True when
        this is found. The others stay possible, since an arm that is blocked stands still, too.
        """
        if self._held is not None or not self._possible:
            return False
        if now_s < self._look_s:
            return False
        self._look_s = now_s + _LOOK_STILL_S
        if self._motion is not None:
            # The nominal motion is among the possible ones: beside it is the least that is needed.
            away = float((np.abs(self._motion.state(now_s)[0] - measured) - slack).max())
            if away <= _STANDS_BESIDE:
                self._still, self._beside_since_s = 0.0, None
                return False
        at = arrivals(self._possible, np.array([now_s])).positions
        apart = np.maximum(at.min(axis=0) - measured, measured - at.max(axis=0))
        beside = float((apart - slack).max())
        if self._still is None:
            self._still = beside
        if beside <= max(self._still, 0.0) + _STANDS_BESIDE:
            self._beside_since_s = None
            return False
        if self._beside_since_s is None:
            self._beside_since_s = now_s
        if now_s - self._beside_since_s < _CONTRADICTED_S:
            return False
        self._may_rest_at(measured, now_s)
        return True

    def moves_again(self) -> None:
        """The robot does not stand still."""
        self._still = self._beside_since_s = None

    def _may_rest_at(self, position: Floats, now_s: float) -> None:
        """One more possible motion: rest at `position`, from which every later one may be left."""
        held = self._held = PossibleMotion(
            points=JointMotion.at_rest(position, now_s), paths=None, latest_s=math.inf
        )
        rest = Arrivals(
            at_s=np.array([now_s]),
            positions=position[None, :],
            velocities=np.zeros((1, position.size)),
        )
        before = len(self._possible) - len(self._flights)
        self._possible = [
            replace(one, paths=one.paths.joined_by(Paths.to(one.points, rest)))
            if one.paths is not None and one.points.start_s > now_s + _LEAST_WAY_S
            else one
            for one in self._possible
        ]
        # Before those in flight: an acknowledgement counts from the end.
        self._possible.insert(before, held)
        self._uncertain_until_s = self.end_s
        self._forget_arrivals()

    def look_ahead(self, now_s: float) -> Arrivals | None:
        """Compute what `arrivals` will need from `now_s` on, for `keep`; valid until something is
        sent or acknowledged. Takes as long as judging a command. None: nothing to compute."""
        if not self._possible or self.late_s <= 0.0:
            return None
        moments = self._grid(now_s, now_s + self.late_s + _AHEAD_S)
        return arrivals(self._possible, moments) if moments.size else None

    def keep(self, ahead: Arrivals) -> None:
        """Keep the result of `look_ahead` until the next trajectory is sent or acknowledged."""
        self._ahead = ahead

    def _forget_arrivals(self) -> None:
        self._seen = self._ahead = None

    def arrivals(self, now_s: float) -> Arrivals:
        """The states from which the controller may go over to a trajectory that is sent now.

        Raises:
            RuntimeError: before `rest_at` or `assume`.
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
        """The examined moments of arrival [T], increasing: now, the latest possible, and
        between."""
        if self.late_s <= 0.0:
            return np.array([now_s])
        latest_s = now_s + self.late_s
        between = self._grid(now_s, latest_s)
        return np.concatenate([[now_s], between, [latest_s]])

    def _grid(self, from_s: float, to_s: float) -> Floats:
        """Moments between two: those of the grid, and the last moment of each motion that ends in
        between, where its continuations differ most from the others. At most one lies in each half
        step, so their number is bounded, and none depends on `from_s`."""
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
