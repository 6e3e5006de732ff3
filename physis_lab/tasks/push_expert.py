"""The expert's control law for pushing the disc, its predicted motion, and the joints for it. Pure.

The law is stateless. In the plane, tool and disc are circles; the tool's height is the third
coordinate. The tool moves, raised, to a point behind the disc as seen from the goal, comes down,
pushes along the line to the goal while correcting its offset from that line, and rises when the
disc has arrived. If the disc slips off, the tool goes around it again. The disc's motion over the
next second is predicted as a quasi-static push without contact friction: the tool displaces it
along the line between the two centres.
"""

from __future__ import annotations

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import TOOL_TIP_M
from physis_lab.tasks.expert import approach
from physis_lab.tasks.push import DISC_HEIGHT_M, DISC_RADIUS_M

LOW_M = 0.055
"""Height of the end effector while pushing; the contact is at the tool's cylinder."""
HIGH_M = 0.17
TOUCH_M = DISC_RADIUS_M + TOOL_TIP_M
"""Distance of the two axes at contact."""
BEHIND_M = TOUCH_M + 0.03
"""Distance behind the disc's centre at which the tool comes down."""
DONE_M = 0.012
DONE_ONCE_UP_M = 0.025
"""Distance to the goal that is close enough; larger while the tool is up (hysteresis)."""
LANE_M = 0.035
"""Beyond this offset from the line the tool goes around."""
SPEED_M_S = 0.35
PUSH_M_S = 0.12
CLIMB_M_S = 0.35
STEER_HZ = 3.0
NEAR_HZ = 5.0


TOOL_LOW_M = (0.20, -0.36, 0.045)
TOOL_HIGH_M = (0.70, 0.36, 0.32)
"""The end effector stays in this box, which is reachable with the tool pointing down."""
_COARSE = 3
"""Every third point is solved by inverse kinematics; the joints between are interpolated."""


def velocity(tool: Array, disc: Array, goal: Array) -> Array:
    """Desired velocity [..., 3] m/s of the end effector.

    Args:
        tool: [..., 3] m, the end effector.
        disc: [..., 2] m, its centre. goal: [..., 2] m.
    """
    way = goal - disc
    left_m = np.linalg.norm(way, axis=-1)
    ahead = way / np.maximum(left_m, 1e-9)[..., None]
    aside = np.stack([-ahead[..., 1], ahead[..., 0]], axis=-1)
    offset = tool[..., :2] - disc
    along, beside = (offset * ahead).sum(-1), (offset * aside).sum(-1)
    height = tool[..., 2]

    behind = disc - BEHIND_M * ahead
    to_behind = behind - tool[..., :2]
    far_m = np.linalg.norm(to_behind, axis=-1)
    # Raised on the way, low above the point, with a slope between.
    wanted_height = LOW_M + (HIGH_M - LOW_M) * np.clip((far_m - 0.012) / 0.04, 0.0, 1.0)
    # A tool that is too low rises before it moves, because the disc may be in the way.
    free = np.clip(1.0 - (wanted_height - height) / 0.04, 0.0, 1.0)
    speed = np.minimum(SPEED_M_S, NEAR_HZ * far_m) * free
    travel = to_behind / np.maximum(far_m, 1e-9)[..., None] * speed[..., None]

    pushing = (
        (height < LOW_M + 0.02)
        & (np.abs(beside) < LANE_M)
        & (along < -0.05)
        & (along > -BEHIND_M - 0.05)
    )
    # Slower near the goal, and slower off the line, where it steers first.
    forward = np.minimum(PUSH_M_S, 0.02 + 2.0 * left_m) * (1.0 - 0.7 * np.abs(beside) / LANE_M)
    push = forward[..., None] * ahead - (STEER_HZ * beside)[..., None] * aside

    up = height > 0.5 * (LOW_M + HIGH_M)
    done = left_m < np.where(up, DONE_ONCE_UP_M, DONE_M)
    plane = np.where(pushing[..., None], push, travel)
    plane = np.where(done[..., None], 0.0, plane)
    wanted_height = np.where(pushing, LOW_M, wanted_height)
    wanted_height = np.where(done, HIGH_M, wanted_height)
    climb = np.clip(NEAR_HZ * (wanted_height - height), -CLIMB_M_S, CLIMB_M_S)
    out: Array = np.concatenate([plane, climb[..., None]], axis=-1)
    return out


def pushed(tool: Array, disc: Array) -> Array:
    """Position of the disc [..., 2] m after the tool has moved to `tool` [..., 3] m."""
    offset = disc - tool[..., :2]
    apart_m = np.linalg.norm(offset, axis=-1)
    low = tool[..., 2] - TOOL_TIP_M < DISC_HEIGHT_M
    inside = low & (apart_m < TOUCH_M)
    away = offset / np.maximum(apart_m, 1e-9)[..., None]
    out: Array = np.where(inside[..., None], tool[..., :2] + TOUCH_M * away, disc)
    return out


def expected_path(
    tool: Array, disc: Array, goal: Array, points: int, step_s: float, substeps: int = 3
) -> Array:
    """The expert's path from here: [..., points, 3] m; the first point is `tool` [..., 3] m."""
    out = np.empty((*tool.shape[:-1], points, 3))
    out[..., 0, :] = tool
    h = step_s / substeps
    for k in range(1, points):
        for _ in range(substeps):
            tool = tool + h * velocity(tool, disc, goal)
            disc = pushed(tool, disc)
        out[..., k, :] = tool
    return out


def push_moves(
    kinematics: Kinematics,
    joints: Array,
    objects: Array,
    marks: Array,
    *,
    points: int,
    step_s: float,
) -> Array:
    """The expert's motion from each of T states: [T, points, 6] rad; the first point is the state.

    Args:
        joints: [T, 6] rad. objects, marks: [T, 3] m, positions of disc and goal.
    """
    tools = np.stack([kinematics.forward(q).position for q in joints])
    ways = expected_path(in_reach(tools), objects[:, :2], marks[:, :2], points, step_s)
    paths = np.empty((*ways.shape[:2], 6))
    start: Array | None = None
    for way, path in zip(ways, paths, strict=True):
        path[:] = _joint_path(kinematics, way, start)
        start = path[0]
    return approach(joints, paths, step_s)


def in_reach(places: Array) -> Array:
    """Positions [..., 3] m, clipped to the tool's box."""
    out: Array = np.clip(places, TOOL_LOW_M, TOOL_HIGH_M)
    return out


def _joint_path(kinematics: Kinematics, way: Array, start: Array | None) -> Array:
    """way [n, 3] m -> [n, 6] rad with the tool down."""
    knots = np.unique(np.append(np.arange(0, len(way), _COARSE), len(way) - 1))
    solved = np.empty((len(knots), 6))
    for i, place in enumerate(in_reach(way[knots])):
        start = kinematics.inverse(place, start, tolerance_m=1e-4)
        solved[i] = start
    at = np.arange(len(way))
    return np.stack([np.interp(at, knots, solved[:, j]) for j in range(6)], axis=1)
