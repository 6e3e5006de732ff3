"""Motions that a controller may be playing, each left for the next at some moment or other.

A motion begins where the controller left the one before: by one cubic to its first point, and from
there along its points. Of the states from which it may have been left the outermost are kept
(physis_ros.safety.possible_states). Times are seconds of the controller's clock. Pure.

This runs for every command, between a chunk and the robot. So all motions are worked out at once,
with the states in the last dimension of memory, which is the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_motion import Floats, JointMotion, hermite
from physis_ros.safety.possible_states import STATES, outermost, outermost_together


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
