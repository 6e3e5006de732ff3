"""The outermost of many possible states of each joint, so that what is possible stays countable.

A cubic's accelerations at both ends are linear in the state that it leaves. So a bound that holds
for the outermost states, seen along q + lambda v, holds for all that lie between them; and a
controller that goes over to a trajectory maps states linearly, so that outermost ones stay so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_motion import Floats

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
