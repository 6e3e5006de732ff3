"""Motion of the arm in training episodes, and the expert's motion from each of its states.

In turns of 0.8 to 4 s the arm tracks the expert with a delay (0 to 0.5 s) and slowly varying
errors, stands still, follows another path, or moves to a pose far from any ball. So the joints do
not reveal the ball, and the data contain recoveries from every error. The push task has its own
module, `physis_lab.tasks.push_demonstrations`, because there the arm moves the disc.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.tasks.ball import Follow, Reach
from physis_lab.tasks.expert import approach, ideal
from physis_lab.tasks.task import Task

FAR_RAD = np.array([1.7, 0.5, 0.6, 0.6, 0.3, 1.7])
"""Largest deviation from the home pose, per joint."""

EXPERT_STEP_S = 0.05
EXPERT_POINTS = 25
IDEAL_STEP_S = 0.02
MODES = ("track", "track", "track", "still", "other", "astray")
_AHEAD_S = EXPERT_STEP_S * (EXPERT_POINTS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """One episode at its T frames.

    joints [T, 6] rad; marks [T, 3] m (the ball or the goal); objects [T, 3] m if the task has one;
    expert [T, EXPERT_POINTS, 6] rad from each frame's state on; ideal [N, 6] rad if the goal does
    not depend on the arm.
    """

    joints: Array
    marks: Array
    expert: Array
    ideal: Array | None = None
    objects: Array | None = None


def follow_motion(
    kinematics: Kinematics,
    seed: int,
    random: np.random.Generator,
    frame_s: Array,
    jump_period_s: float | None = None,
) -> Motion:
    """Half of the episodes stretch the ball's path into the corners of its box; in a third the ball
    rests for the first seconds. The expert knows the future path, including jumps."""
    stretch = random.uniform(1.0, 2.5) if random.random() < 0.5 else 1.0
    stand_s = random.uniform(0.0, 15.0) if random.random() < 0.3 else 0.0
    task = Follow(seed=seed, jump_period_s=jump_period_s, stretch=stretch, stand_s=stand_s)
    dense_s, path, joints = _moved(kinematics, task, seed, random, frame_s)
    ahead_s = frame_s[:, None] + np.arange(EXPERT_POINTS) * EXPERT_STEP_S
    return Motion(
        joints=joints,
        marks=_marks(task, frame_s),
        expert=approach(joints, _sample(dense_s, path, ahead_s), EXPERT_STEP_S),
        ideal=path,
    )


def reach_motion(
    kinematics: Kinematics, seed: int, random: np.random.Generator, frame_s: Array
) -> Motion:
    """The ball moves to a new place every 2 to 5 s, which the expert does not know in advance."""
    task = Reach(seed=seed, every_s=random.uniform(2.0, 5.0))
    dense_s, path, joints = _moved(kinematics, task, seed, random, frame_s)
    # The path has steps: interpolation would put a frame near a step between two places.
    now = np.searchsorted(dense_s, frame_s + 1e-9, side="right") - 1
    held = np.repeat(path[now][:, None], EXPERT_POINTS, axis=1)
    return Motion(
        joints=joints,
        marks=_marks(task, dense_s[now]),
        expert=approach(joints, held, EXPERT_STEP_S),
        ideal=path,
    )


def _moved(
    kinematics: Kinematics,
    task: Task,
    seed: int,
    random: np.random.Generator,
    frame_s: Array,
) -> tuple[Array, Array, Array]:
    """Dense times [N] s, the ideal path there [N, 6], and the arm at the frames [T, 6] rad."""
    # The recording plus the expert's horizon.
    end_s = len(frame_s) * (frame_s[1] - frame_s[0])
    dense_s = np.arange(0.0, end_s + _AHEAD_S + IDEAL_STEP_S, IDEAL_STEP_S)
    path = ideal(kinematics, task, dense_s)
    other = ideal(kinematics, Follow(seed=seed + 500_000), dense_s)
    moved = executed_path(path, other, random)
    return dense_s, path, _sample(dense_s, moved, frame_s)


def _marks(task: Task, at_s: Array) -> Array:
    return np.stack([task.target(float(t)) for t in at_s])


def executed_path(path: Array, other: Array, random: np.random.Generator) -> Array:
    """Motion of an imperfect arm, [n, 6] rad, for the ideal `path` [n, 6] (one point per 0.02 s).

    `other` [n, 6] is a path that is independent of the ball.
    """
    n = len(path)
    out = np.empty_like(path)
    here = (path if random.random() < 0.3 else other)[0] + random.normal(0.0, 0.1, 6)
    error = np.zeros(6)
    # An Ornstein-Uhlenbeck walk with a memory of about half a second.
    memory = np.exp(-IDEAL_STEP_S / 0.5)
    spread = random.uniform(0.005, 0.06)
    turn_ends, mode, astray = 0, "track", path[0]
    late, gain_hz, speed_rad_s = 0, 6.0, 1.2
    for i in range(n):
        if i >= turn_ends:
            turn_ends = i + int(random.uniform(0.8, 4.0) / IDEAL_STEP_S)
            mode = str(random.choice(MODES))
            astray = np.array(HOME_RAD) + random.uniform(-FAR_RAD, FAR_RAD)
            late = int(random.uniform(0.0, 0.5) / IDEAL_STEP_S)
            gain_hz = random.uniform(3.0, 15.0)
            speed_rad_s = random.uniform(0.8, 2.0)
        error = memory * error + np.sqrt(1.0 - memory**2) * random.normal(0.0, spread, 6)
        wanted = {
            "track": path[max(0, i - late)] + error,
            "other": other[i],
            "still": here,
            "astray": astray,
        }[mode]
        reach = speed_rad_s * IDEAL_STEP_S
        here = here + np.clip(gain_hz * IDEAL_STEP_S * (wanted - here), -reach, reach)
        out[i] = here
    return out


def _sample(dense_s: Array, values: Array, at_s: Array) -> Array:
    """Linear interpolation of values [n, j] given at dense_s [n], at the times at_s [...]."""
    columns = [np.interp(at_s, dense_s, values[:, j]) for j in range(values.shape[1])]
    return np.stack(columns, axis=-1)
