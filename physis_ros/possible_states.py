"""The outermost of many possible states of each joint, so that what is possible stays countable.

A cubic's accelerations at both ends are linear in the state that it leaves. So a bound that holds
for the outermost states, seen along q + lambda v, holds for all that lie between them; and a
controller that goes over to a trajectory maps states linearly, so that outermost ones stay so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from physis_ros.joint_motion import Floats

# A cubic of T seconds asks for q + 2T/3 v and q + T/3 v of the state that it leaves [s].
_LAMBDAS_S = (0.0, 0.02, 0.05, 0.12, 0.4)
_ALONG = (*((1.0, lam) for lam in _LAMBDAS_S), (0.0, 1.0))

STATES = 2 * len(_ALONG)
"""How many states are left of any number."""


def outermost(
    positions: Floats, velocities: Floats, possible: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Of N states at each of T moments those that lie outermost, joint by joint.

    `positions` and `velocities` [T, N, joints]; `possible` [T, N], at least one at each moment.
    Returns two arrays [T, STATES, joints]. What is given together for several joints need not
    belong together.
    """
    moments = np.arange(positions.shape[0])[:, None]
    # What is impossible is replaced by something possible, which changes no extreme.
    index = np.where(possible, np.arange(possible.shape[1]), possible.argmax(axis=1)[:, None])
    q = np.ascontiguousarray(positions[moments, index].transpose(0, 2, 1))
    v = np.ascontiguousarray(velocities[moments, index].transpose(0, 2, 1))
    picked = np.empty((*q.shape[:2], STATES), np.intp)
    for place, (along_q, along_v) in enumerate(_ALONG):
        if along_q == 0.0:
            reach = v
        else:
            reach = q if along_v == 0.0 else q + (along_v / along_q) * v
        reach.argmin(axis=2, out=picked[:, :, 2 * place])
        reach.argmax(axis=2, out=picked[:, :, 2 * place + 1])
    return (
        np.take_along_axis(q, picked, axis=2).transpose(0, 2, 1),
        np.take_along_axis(v, picked, axis=2).transpose(0, 2, 1),
    )
