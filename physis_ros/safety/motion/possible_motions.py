"""Motions that the trajectory controller may be playing, and the outermost of their states.

A motion begins where the controller left the previous one: one cubic to its first point, then along
its points. Of the states in which it may have been left, only the outermost are kept for each
joint, so that their number stays bounded. That is enough: a cubic's accelerations at both ends are
linear in its starting state, so a bound that holds for the outermost states, seen along
q + lambda v, holds for all states between them. A controller that goes over to a trajectory maps
states linearly, so outermost states stay outermost.

Times are seconds of the controller's clock. Pure. This runs for every command, between a chunk and
the robot, so all motions are computed at once, with the states in the last (longest) dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_motion import Floats, JointMotion

# A cubic of T seconds asks for q + 2T/3 v and q + T/3 v of the state that it leaves [s].
# States are seen along q, along v, and along q + lambda v for these. Below zero too: a cubic that
# swings back turns what is outermost now into what was outermost against its speed.
_SLANTS_S = np.array([0.02, 0.05, 0.12, 0.4, -0.1])
# Each direction both ways: the least and the largest along it are the largest of these.
_ALONG_Q = np.kron([1.0, 0.0, *np.ones(_SLANTS_S.size)], [-1.0, 1.0])
_ALONG_V = np.kron([0.0, 1.0, *_SLANTS_S], [-1.0, 1.0])
# Every direction once.
_TO_Q, _TO_V = _ALONG_Q[1::2], _ALONG_V[1::2]

STATES = _ALONG_Q.size
"""How many states are left of any number."""


def outermost_together(
    positions: Floats, velocities: Floats, rows: npt.NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Of groups that `outermost` has seen, [P, STATES, joints], those that lie outermost of all
    groups in a row of `rows` [T, groups]: indices below P, or -1 for no group; at least one is
    there. Returns two arrays [T, STATES, joints]."""
    reach = _ALONG_Q[:, None] * positions + _ALONG_V[:, None] * velocities
    reach = np.where((rows >= 0)[:, :, None, None], reach[rows], -np.inf)
    group = np.take_along_axis(rows, reach.argmax(axis=1).reshape(len(rows), -1), axis=1)
    index = group * reach[0, 0].size + np.arange(reach[0, 0].size)
    shape = (len(rows), *positions.shape[1:])
    return (
        np.ascontiguousarray(positions).take(index).reshape(shape),
        np.ascontiguousarray(velocities).take(index).reshape(shape),
    )


def are_among(values: Floats, others: Floats) -> npt.NDArray[np.bool_]:
    """np.isin for `others` that increase; they are few, and isin takes ten times as long."""
    if not others.size:
        return np.zeros(values.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(others, values), others.size - 1)
    found: npt.NDArray[np.bool_] = others[place] == values
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """States that the controller may leave when a trajectory sent now arrives: `at_s` [S],
    positions and velocities [S, joints]. They bound, joint by joint, what is possible."""

    at_s: Floats
    positions: Floats
    velocities: Floats

    @classmethod
    def together(cls, parts: Sequence[Arrivals]) -> Arrivals:
        """Those of several sets of moments, in order of time."""
        at_s = np.concatenate([part.at_s for part in parts])
        order = np.argsort(at_s, kind="stable")
        return cls(
            at_s=at_s[order],
            positions=np.asfortranarray(np.concatenate([one.positions for one in parts])[order]),
            velocities=np.asfortranarray(np.concatenate([one.velocities for one in parts])[order]),
        )

    def at(self, moments_s: Floats) -> Arrivals:
        """Those of some of its moments, [T] increasing."""
        here = are_among(self.at_s, moments_s)
        return Arrivals(
            at_s=self.at_s[here], positions=self.positions[here], velocities=self.velocities[here]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """The cubics to one first point from each of N states: at u seconds after that point (u < 0),
    q = q1 + v1 u + c u^2 + d u^3. `curves` [2, joints, N]: c and d. `since_s` [N], increasing: when
    each begins. `point` [2, joints]: q1 and v1, reached at `first_s`."""

    since_s: Floats
    curves: Floats
    point: Floats
    first_s: float

    @classmethod
    def to(cls, points: JointMotion, left: Arrivals) -> Paths:
        """From `left` to the first of `points`. From q0, v0 at u = -T, with D = q0 - q1 + v1 T and
        E = v0 - v1: c = 3 D / T^2 + E / T, and d = 2 D / T^3 + E / T^2."""
        point = np.array([points.positions[0], points.velocities[0]])
        way = points.start_s - left.at_s
        rise = (left.positions - point[0]).T + point[1][:, None] * way
        change = (left.velocities - point[1]).T
        rise /= way
        curves = np.array([3.0 * rise + change, (2.0 * rise + change) / way])
        curves /= way
        return cls(since_s=left.at_s, curves=curves, point=point, first_s=points.start_s)

    def joined_by(self, others: Paths) -> Paths:
        """With others to the same point."""
        since_s = np.concatenate([self.since_s, others.since_s])
        order = np.argsort(since_s, kind="stable")
        curves = np.ascontiguousarray(
            np.concatenate([self.curves, others.curves], axis=2)[:, :, order]
        )
        return replace(self, since_s=since_s[order], curves=curves)

    def begun(self, at_s: Floats) -> npt.NDArray[np.intp]:
        """How many have begun at each of `at_s` [T]."""
        return self.since_s.searchsorted(at_s, side="right")

    def all_states(self, at_s: Floats) -> tuple[Floats, Floats]:
        """Positions and velocities [T, N, joints], also of those that have not begun."""
        return self._states(at_s, self.curves.transpose(0, 2, 1)[:, None])

    def outermost(self, at_s: Floats) -> tuple[Floats, Floats]:
        """Of those that have begun at each of `at_s` [T] (one at least) the states that lie
        outermost, joint by joint: positions and velocities [T, STATES, joints]. What is given
        together for several joints need not belong together.

        A direction's reach is linear in c and d, so it is computed from them alone.
        """
        _, joints, count = self.curves.shape
        u = (at_s - self.first_s)[:, None]
        along = np.empty((at_s.size, _TO_Q.size, 2))
        along[:, :, 0] = (_TO_Q * u + 2.0 * _TO_V) * u
        along[:, :, 1] = (_TO_Q * u + 3.0 * _TO_V) * (u * u)
        reach = (along.reshape(-1, 2) @ self.curves.reshape(2, -1)).reshape(
            at_s.size, _TO_Q.size, joints, count
        )
        for moment, begun in enumerate(self.begun(at_s).tolist()):
            if begun == count:
                break
            # What has not begun is replaced by the first, which changes no extreme.
            reach[moment, :, :, begun:] = reach[moment, :, :, :1]
        picked = np.empty((at_s.size, STATES, joints), np.intp)
        reach.argmin(axis=3, out=picked[:, ::2])
        reach.argmax(axis=3, out=picked[:, 1::2])
        picked += np.arange(joints) * count
        return self._states(at_s, self.curves.reshape(2, -1).take(picked, axis=1))

    def _states(self, at_s: Floats, curves: Floats) -> tuple[Floats, Floats]:
        u = (at_s - self.first_s)[:, None, None]
        c, d = curves
        bend = d * u
        positions = (bend + c) * (u * u) + (self.point[0] + self.point[1] * u)
        bend *= 3.0
        bend += 2.0 * c
        velocities = bend * u + self.point[1]
        return positions, velocities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PossibleMotion:
    """A motion that may be in force until `until_s`: along `paths` to the first of `points` (None:
    it is played since before), and along `points`. It has been taken, or a later one has, by
    `latest_s`."""

    points: JointMotion
    paths: Paths | None
    latest_s: float
    until_s: float = math.inf


def arrivals(motions: Sequence[PossibleMotion], at_s: Floats) -> Arrivals:
    """What is possible at each of `at_s` [T], increasing; one motion at least is in force then."""
    moments = [int(at_s.searchsorted(one.until_s, side="right")) for one in motions]
    widest = max((one.paths.since_s.size for one in motions if one.paths is not None), default=1)
    if widest * len(motions) > STATES:
        rows = np.full((at_s.size, len(motions)), -1)
        begins = np.cumsum([0, *moments])
        for number, count in enumerate(moments):
            rows[:count, number] = begins[number] + np.arange(count)
        found = [
            _outermost(one, at_s[:count])
            for one, count in zip(motions, moments, strict=True)
            if count
        ]
        positions, velocities = outermost_together(
            np.concatenate([q for q, _ in found]), np.concatenate([v for _, v in found]), rows
        )
        possible = np.ones(positions.shape[:2], bool)
    else:
        positions, velocities, possible = _side_by_side(motions, moments, at_s)
    # Columns lie together in memory: whoever reckons with them has long rows that way.
    return Arrivals(
        at_s=np.repeat(at_s[:, None], possible.shape[1], axis=1)[possible],
        positions=np.asfortranarray(positions[possible]),
        velocities=np.asfortranarray(velocities[possible]),
    )


def _outermost(one: PossibleMotion, at_s: Floats) -> tuple[Floats, Floats]:
    """Of one motion at each of `at_s` [T]: positions and velocities [T, STATES, joints]."""
    coming = 0 if one.paths is None else int(at_s.searchsorted(one.paths.first_s))
    parts: list[tuple[Floats, Floats]] = []
    if one.paths is not None and coming:
        parts.append(one.paths.outermost(at_s[:coming]))
    if coming < at_s.size:
        there, speed = one.points.states(at_s[coming:])
        parts.append(
            (
                np.repeat(there[:, None, :], STATES, axis=1),
                np.repeat(speed[:, None, :], STATES, axis=1),
            )
        )
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([q for q, _ in parts]), np.concatenate([v for _, v in parts])


def _side_by_side(
    motions: Sequence[PossibleMotion], moments: Sequence[int], at_s: Floats
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """All states of a few motions: positions and velocities [T, N, joints], and which of them are
    possible [T, N]."""
    joints = motions[0].points.positions.shape[1]
    parts: list[tuple[Floats, Floats, npt.NDArray[np.bool_]]] = []
    for one, count in zip(motions, moments, strict=True):
        coming = 0 if one.paths is None else int(np.searchsorted(at_s[:count], one.paths.first_s))
        width = 1 if one.paths is None else one.paths.since_s.size
        positions = np.zeros((at_s.size, width, joints))
        velocities = np.zeros((at_s.size, width, joints))
        possible = np.zeros((at_s.size, width), bool)
        if one.paths is not None and coming:
            positions[:coming], velocities[:coming] = one.paths.all_states(at_s[:coming])
            begun = one.paths.begun(at_s[:coming])
            possible[:coming] = np.arange(width) < begun[:, None]
        if coming < count:
            there, speed = one.points.states(at_s[coming:count])
            positions[coming:count, 0], velocities[coming:count, 0] = there, speed
            possible[coming:count, 0] = True
        parts.append((positions, velocities, possible))
    return (
        np.concatenate([part[0] for part in parts], axis=1),
        np.concatenate([part[1] for part in parts], axis=1),
        np.concatenate([part[2] for part in parts], axis=1),
    )
