"""The scripted expert, which knows the future path of the ball. Pure.

`ideal` is the joint path that keeps the end effector at its goal. `approach` is the expert's motion
from any other state: it closes the gap to that path at a bounded joint speed.
"""

from __future__ import annotations

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import Kinematics
from physis_lab.tasks.task import Task

APPROACH_GAIN_HZ = 6.0
"""Decay rate of the gap: a factor of e in 1/6 s."""

APPROACH_SPEED_RAD_S = 1.2
"""Largest joint speed while approaching the path; under half of the arm's limit."""


def ideal(kinematics: Kinematics, task: Task, t_s: Array) -> Array:
    """Joint positions [n, 6] rad that put the end effector at the goal at each time `t_s` [n] s.

    Every solution starts from the one before, the first from the home pose.
    """
    out = np.empty((len(t_s), 6))
    start: Array | None = None
    for i, t in enumerate(t_s):
        start = kinematics.inverse(task.goal(float(t)), start)
        out[i] = start
    return out


def approach(state: Array, path: Array, step_s: float) -> Array:
    """The expert's motion from joint positions `state` onto a moving path.

    state [..., 6] rad at path[..., 0, :]; path [..., n, 6] rad, one point per `step_s`.
    Returns [..., n, 6]: the first point is `state` itself.
    """
    out = np.empty(np.broadcast_shapes(path.shape, (*state.shape[:-1], *path.shape[-2:])))
    here = np.broadcast_to(state, out[..., 0, :].shape).copy()
    reach = APPROACH_SPEED_RAD_S * step_s
    keep = np.exp(-APPROACH_GAIN_HZ * step_s)
    out[..., 0, :] = here
    for k in range(1, path.shape[-2]):
        # The gap decays and the path's own motion is added, so without a gap the path is exact.
        wanted = path[..., k, :] + keep * (here - path[..., k - 1, :])
        here = here + np.clip(wanted - here, -reach, reach)
        out[..., k, :] = here
    return out
