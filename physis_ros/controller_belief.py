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
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from physis_ros.joint_motion import Floats, JointMotion, hermite
from physis_ros.possible_states import STATES, outermost

# Moments of arrival that are looked at, so far apart.
_ARRIVAL_STEP_S = 0.0125
# A controller that takes a trajectory so shortly before its first point leaves no way to it.
_LEAST_WAY_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """States that the controller may leave when a trajectory sent now arrives: `at_s` [S],
    positions and velocities [S, joints]. They bound, joint by joint, what is possible."""

    at_s: Floats
    positions: Floats
    velocities: Floats

    def some(self) -> Arrivals:
        """Those of every other moment, first and last among them: where a motion leads to changes
        so little between moments of going over to it that these are enough."""
        moments = np.unique(self.at_s)
        kept = np.isin(self.at_s, [moments[0], *moments[::-2]])
        return Arrivals(
            at_s=self.at_s[kept], positions=self.positions[kept], velocities=self.velocities[kept]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Possible:
    """A motion that may be in force until `until_s`: to the first of `points` from any of `left`
    (None: it is played since before), and along `points`. It has been taken, or a later one has,
    by `latest_s`."""

    points: JointMotion
    left: Arrivals | None
    latest_s: float
    until_s: float = math.inf

    def states(self, at_s: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """At each of `at_s` [T]: positions and velocities [T, N, joints], and which of them are
        possible [T, N]."""
        there, speed = self.points.states(at_s)
        in_force = at_s <= self.until_s
        left, first_s = self.left, self.points.start_s
        if left is None or at_s[0] >= first_s:
            return there[:, None, :], speed[:, None, :], in_force[:, None]
        at, since = at_s[:, None, None], left.at_s[None, :, None]
        positions, velocities = hermite(
            left.positions[None],
            left.velocities[None],
            self.points.positions[0],
            self.points.velocities[0],
            first_s - since,
            np.clip(at - since, 0.0, first_s - since),
        )
        late = at_s >= first_s
        positions[late], velocities[late] = there[late, None, :], speed[late, None, :]
        return positions, velocities, in_force[:, None] & (left.at_s[None, :] <= at_s[:, None])


class ControllerBelief:
    """`late_s`: a trajectory is taken within so long after it was sent, or a later one is by then,
    or it is lost."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.lost = 0
        self._motion: JointMotion | None = None
        self._possible: list[_Possible] = []
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
        self._possible = [_Possible(points=motion, left=None, latest_s=-math.inf)]
        self._flights.clear()
        self._doubt_until_s = None
        self._seen = None

    def sent(self, points: JointMotion, now_s: float, arrivals: Arrivals | None = None) -> None:
        """A trajectory has left, its first point due more than `late_s` from now. `arrivals` are
        those of now, where they are known already.

        Raises:
            RuntimeError: before the robot's place was known.
        """
        left = (arrivals or self.arrivals(now_s)).some()
        if left.at_s[-1] > points.start_s - _LEAST_WAY_S:
            raise ValueError("the first point may be due before the trajectory is taken")
        self._possible.append(_Possible(points=points, left=left, latest_s=now_s + self.late_s))
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
        steps = math.ceil(self.late_s / _ARRIVAL_STEP_S)
        at_s: Floats = now_s + np.linspace(0.0, self.late_s, steps + 1, dtype=np.float64)
        states = [one.states(at_s) for one in self._possible]
        positions, velocities, possible = (
            np.concatenate([state[i] for state in states], axis=1) for i in range(3)
        )
        if possible.shape[1] > STATES:
            positions, velocities = outermost(positions, velocities, possible)
            possible = np.ones(positions.shape[:2], bool)
        return Arrivals(
            at_s=np.repeat(at_s[:, None], possible.shape[1], axis=1)[possible],
            positions=positions[possible],
            velocities=velocities[possible],
        )
