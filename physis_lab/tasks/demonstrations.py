"""How the arm moves in training episodes, and what the expert would do from each of its states.

By turns of 0.8 to 4 s the arm tracks the expert late (0 to 0.5 s) and with slowly wandering errors,
stands still, follows another path, or goes to a pose far from any ball. So the joints do not give
away the ball, and the way back from any error is in the data. The pushed disc has its own module,
`physis_lab.tasks.push_demonstrations`, because what the arm does moves the disc.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.tasks.expert import approach, ideal
from physis_lab.tasks.task import Follow, Reach, Task

FAR_RAD = np.array([1.7, 0.5, 0.6, 0.6, 0.3, 1.7])
"""How far from the home pose an arm may stray, each joint on its own."""

EXPERT_STEP_S = 0.05
EXPERT_POINTS = 25
IDEAL_STEP_S = 0.02
MODES = ("track", "track", "track", "still", "other", "astray")
_AHEAD_S = EXPERT_STEP_S * (EXPERT_POINTS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What one episode shows at its T frames.

    joints [T, 6] rad; marks [T, 3] m (the ball or the goal); objects [T, 3] m where the task has
    one; expert [T, EXPERT_POINTS, 6] rad from the state of each frame on; ideal [N, 6] rad where
    one path keeps the goal whatever the arm does.
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
    """In half of the episodes the ball is pushed into the corners of its box, in a third it stands
    for the first seconds. The expert knows where the ball will be, leaps included."""
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
    """The ball stands at a new place every 2 to 5 s. The expert does not know the next one."""
    task = Reach(seed=seed, every_s=random.uniform(2.0, 5.0))
    dense_s, path, joints = _moved(kinematics, task, seed, random, frame_s)
    # The path is a staircase: interpolated, a frame near a leap would see half of it.
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
    # As long as the recording, and as far beyond its end as the expert looks ahead.
    end_s = len(frame_s) * (frame_s[1] - frame_s[0])
    dense_s = np.arange(0.0, end_s + _AHEAD_S + IDEAL_STEP_S, IDEAL_STEP_S)
    path = ideal(kinematics, task, dense_s)
    other = ideal(kinematics, Follow(seed=seed + 500_000), dense_s)
    moved = executed_path(path, other, random)
    return dense_s, path, _sample(dense_s, moved, frame_s)


def _marks(task: Task, at_s: Array) -> Array:
    return np.stack([task.target(float(t)) for t in at_s])


def executed_path(path: Array, other: Array, random: np.random.Generator) -> Array:
    """Where an imperfect arm is, [n, 6] rad, while the ideal is `path` [n, 6] (a step per 0.02 s).

    `other` [n, 6] is a path that has nothing to do with the ball.
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
