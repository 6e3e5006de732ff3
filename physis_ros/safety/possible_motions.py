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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_motion import Floats, JointMotion, hermite

# A cubic of T seconds asks for q + 2T/3 v and q + T/3 v of the state that it leaves [s].
# States are seen along q, along v, and along q + lambda v for these. Below zero too: a cubic that
# swings back turns what is outermost now into what was outermost against its speed.
_SLANTS_S = np.array([0.02, 0.05, 0.12, 0.4, -0.1])[:, None, None, None]
# Each direction both ways: the least and the largest along it are the largest of these.
_ALONG_Q = np.kron([1.0, 0.0, *np.ones(_SLANTS_S.size)], [-1.0, 1.0])
_ALONG_V = np.kron([0.0, 1.0, *_SLANTS_S.ravel()], [-1.0, 1.0])

STATES = _ALONG_Q.size
"""How many states are left of any number."""


def outermost(
    positions: Floats, velocities: Floats, possible: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Of N states at each of T moments those that lie outermost, joint by joint.

    `positions` and `velocities` [T, N, joints]; `possible` [T, N], at least one at each moment.
    Returns two arrays [T, STATES, joints]. What is given together for several joints need not
    belong together.
    """
    q = np.ascontiguousarray(positions.transpose(0, 2, 1))
    v = np.ascontiguousarray(velocities.transpose(0, 2, 1))
    if not possible.all():
        # What is impossible is replaced by something possible, which changes no extreme.
        first = possible.argmax(axis=1)[:, None, None]
        q, v = (
            np.where(possible[:, None, :], x, np.take_along_axis(x, first, axis=2)) for x in (q, v)
        )
    slanted = _SLANTS_S * v
    slanted += q
    picked = np.empty((*q.shape[:2], STATES), np.intp)
    for place, reach in enumerate((q, v, *slanted)):
        reach.argmin(axis=2, out=picked[:, :, 2 * place])
        reach.argmax(axis=2, out=picked[:, :, 2 * place + 1])
    picked += (np.arange(q.shape[0] * q.shape[1]) * q.shape[2]).reshape(*q.shape[:2], 1)
    return q.take(picked).transpose(0, 2, 1), v.take(picked).transpose(0, 2, 1)


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
class PossibleMotion:
    """A motion that may be in force until `until_s`: to the first of `points` from any of `left`
    (None: it is played since before), and along `points`. It has been taken, or a later one has,
    by `latest_s`."""

    points: JointMotion
    left: Arrivals | None
    latest_s: float
    until_s: float = math.inf


def arrivals(motions: Sequence[PossibleMotion], at_s: Floats) -> Arrivals:
    """What is possible at each of `at_s` [T], increasing; one motion at least is in force then."""
    moments = [int(np.searchsorted(at_s, one.until_s, side="right")) for one in motions]
    of = np.repeat(np.arange(len(motions)), moments)
    when = np.concatenate([np.arange(count) for count in moments])
    positions, velocities, possible = _states(motions, of, at_s[when])
    rows = np.full((at_s.size, len(motions)), -1)
    rows[when, of] = np.arange(of.size)
    if possible.shape[1] * len(motions) > STATES:
        positions, velocities = outermost_together(
            *outermost(positions, velocities, possible), rows
        )
        possible = np.ones(positions.shape[:2], bool)
    else:
        # Few enough to be kept side by side.
        possible = (possible[rows] & (rows >= 0)[:, :, None]).reshape(at_s.size, -1)
        shape = (*possible.shape, positions.shape[2])
        positions, velocities = positions[rows].reshape(shape), velocities[rows].reshape(shape)
    # Columns lie together in memory: whoever reckons with them has long rows that way.
    return Arrivals(
        at_s=np.repeat(at_s[:, None], possible.shape[1], axis=1)[possible],
        positions=np.asfortranarray(positions[possible]),
        velocities=np.asfortranarray(velocities[possible]),
    )


def _states(
    motions: Sequence[PossibleMotion], of: npt.NDArray[np.intp], at_s: Floats
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Of motion `of` [P] at `at_s` [P]: positions and velocities [P, N, joints], and which of them
    are possible [P, N]. N: from how many states the motion may have been left at most."""
    joints = motions[0].points.positions.shape[1]
    widest = max((one.left.at_s.size for one in motions if one.left is not None), default=1)
    # Positions and velocities where a motion was left, and of its first point.
    left, first = (
        np.zeros((2, len(motions), joints, widest)),
        np.zeros((2, len(motions), joints, 1)),
    )
    left_s, first_s = np.zeros((len(motions), widest)), np.full(len(motions), -math.inf)
    possible = np.zeros((len(motions), widest), bool)
    possible[:, 0] = True
    for number, one in enumerate(motions):
        if one.left is not None:
            count = one.left.at_s.size
            possible[number, :count] = True
            left_s[number, :count], left_s[number, count:] = one.left.at_s, one.left.at_s[-1]
            left[0, number, :, :count] = one.left.positions.T
            left[1, number, :, :count] = one.left.velocities.T
            first_s[number] = one.points.start_s
            first[0, number, :, 0] = one.points.positions[0]
            first[1, number, :, 0] = one.points.velocities[0]
    since_s, due_s = left_s[of], first_s[of]
    past_first = at_s >= due_s
    way = np.where(past_first, 1.0, due_s)[:, None] - np.where(past_first[:, None], 0.0, since_s)
    along = np.minimum(np.maximum(at_s[:, None] - since_s, 0.0), way)
    q, v = hermite(
        left[0, of], left[1, of], first[0, of], first[1, of], way[:, None], along[:, None]
    )
    for number in np.unique(of[past_first]).tolist():
        rows = past_first & (of == number)
        there, speed = motions[number].points.states(at_s[rows])
        q[rows], v[rows] = there[:, :, None], speed[:, :, None]
    return q.transpose(0, 2, 1), v.transpose(0, 2, 1), possible[of] & (since_s <= at_s[:, None])
